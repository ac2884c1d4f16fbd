"""A submitted job, as a program holds it.

The names, `name`, `job`, `get_job_status()`, `check_if_complete()` and `wait_until_done()` are those of
evals/sdk-resources.mdx and evals/agent-eval/gym-runner.mdx. As there, there is no `get_result()` and no
`download_artifacts()`: `result()` and `download()` are ours, since there is no platform to read a record from, and so
are the callback and the timeout of `wait_until_done()`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_helix_plugin.jobs.schemas import HelixJobStatus
from nhx_evals_sdk.agent_eval.results import AgentEvalResult
from rich.console import Console

from ..api.constants import Phase
from ..client.download import download
from ..client.errors import KubectlError, UserError
from ..client.jobs import JOB_RESOURCE, Job, get_job
from ..client.kubectl import Kubectl
from ..client.patience import Patience
from ..client.reader import WHOLE_BUNDLE_SECONDS
from .bundle import read_bundle

POLL_SECONDS = 2.0
_STATUS = {
    Phase.PENDING: HelixJobStatus.PENDING,
    Phase.SUSPENDED: HelixJobStatus.PAUSED,
    Phase.SUCCEEDED: HelixJobStatus.COMPLETED,
    Phase.FAILED: HelixJobStatus.ERROR,
    Phase.CANCELLED: HelixJobStatus.CANCELLED,
}


class JobNotCompletedError(UserError, RuntimeError):
    """The job ended in another way than well, or is gone; the message has the cluster's words."""


@dataclass(frozen=True)
class JobProgress:
    """What a callback of `wait_until_done` is given."""

    status: HelixJobStatus
    phase: str
    """The cluster's own word, finer than the status: Pending, Staging, Starting, Running, Succeeded, …"""
    done: int
    """Rollouts with a reward."""
    failed: int
    total: int
    """Rollouts asked for; 0 until the dataset is read."""
    mean_reward: float | None
    message: str
    """Why the job is where it is."""


type OnProgress = Callable[[JobProgress], object]


class AgentEvaluatorJobResource:
    """A job on the cluster. `submit` returns one; `get_job_resource` finds one again by its name."""

    def __init__(self, kubectl: Kubectl, job: Job):
        self._kubectl = kubectl.in_namespace(job.namespace)
        self._job = job

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def namespace(self) -> str:
        return self._job.namespace

    @property
    def job(self) -> dict[str, Any]:
        """The AgentEvalJob as the API server returned it when this object was made."""
        return self._job.body

    def get_job_status(self) -> HelixJobStatus:
        """Asks the cluster. A job is `active` from staging to scoring."""
        return _status(self._look())

    def check_if_complete(self, raise_if_not_complete: bool = False) -> bool:
        """Whether the job is `completed`. Raises JobNotCompletedError for any other status if asked to."""
        job = self._look()
        complete = _status(job) is HelixJobStatus.COMPLETED
        if raise_if_not_complete and not complete:
            raise _not_completed(job)
        return complete

    def wait_until_done(
        self,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        poll_interval: float = POLL_SECONDS,
    ) -> None:
        """Returns when the job is `completed`. `timeout` and `poll_interval` are seconds; None waits for ever.

        `on_progress` is called at the start and at every change. Raises JobNotCompletedError if the job failed, was
        cancelled or deleted, TimeoutError if `timeout` is over (the job goes on), UserError if the cluster cannot be
        reached for two minutes.
        """
        for pause in _watch(self, on_progress, timeout, poll_interval):
            time.sleep(pause)

    def download(self, path: str | Path | None = None) -> Path:
        """Copies the result bundle into `path`, a new or empty directory; by default one named after the job. Ours."""
        target = Path(path) if path is not None else Path(self.name)
        download(self._kubectl, self._look(), target, None, WHOLE_BUNDLE_SECONDS, Console(stderr=True, quiet=True))
        return target

    def result(self, path: str | Path | None = None) -> AgentEvalResult:
        """The SDK's result object, read from the bundle, which is downloaded into `path` (by default a new temporary
        directory) and stays there: its trials refer to evidence in it. A directory that holds a bundle already is read
        as it is. Ours."""
        directory = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix=f"{self.name[:40]}-"))
        if not (directory / "run.json").is_file():
            self.download(directory)
        return read_bundle(directory)

    def _look(self) -> Job:
        try:
            job = Job(self._kubectl.json("get", JOB_RESOURCE, self.name))
        except KubectlError as error:
            if error.not_found:
                raise JobNotCompletedError(f"job `{self.name}` in namespace `{self.namespace}` is gone") from None
            raise
        if job.uid != self._job.uid:
            raise JobNotCompletedError(f"job `{job.name}` was deleted, and the one of that name is another")
        return job


class AsyncAgentEvaluatorJobResource:
    """The same job for asynchronous programs: the methods that ask the cluster are awaited."""

    def __init__(self, resource: AgentEvaluatorJobResource):
        self._resource = resource

    @property
    def name(self) -> str:
        return self._resource.name

    @property
    def namespace(self) -> str:
        return self._resource.namespace

    @property
    def job(self) -> dict[str, Any]:
        return self._resource.job

    async def get_job_status(self) -> HelixJobStatus:
        return await asyncio.to_thread(self._resource.get_job_status)

    async def check_if_complete(self, raise_if_not_complete: bool = False) -> bool:
        return await asyncio.to_thread(self._resource.check_if_complete, raise_if_not_complete)

    async def wait_until_done(
        self,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        poll_interval: float = POLL_SECONDS,
    ) -> None:
        """As the synchronous one. `on_progress` is a plain function; a cancelled wait leaves the job as it is."""
        steps = _watch(self._resource, on_progress, timeout, poll_interval)
        while (pause := await asyncio.to_thread(next, steps, None)) is not None:
            await asyncio.sleep(pause)

    async def download(self, path: str | Path | None = None) -> Path:
        return await asyncio.to_thread(self._resource.download, path)

    async def result(self, path: str | Path | None = None) -> AgentEvalResult:
        return await asyncio.to_thread(self._resource.result, path)


def get_job_resource(
    job_name: str, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
) -> AgentEvaluatorJobResource:
    """A job that exists already, in the namespace of the kubeconfig's context unless another is named."""
    kubectl = Kubectl.find(kubeconfig, context, namespace)
    return AgentEvaluatorJobResource(kubectl, get_job(kubectl, job_name))


def _watch(
    resource: AgentEvaluatorJobResource, on_progress: OnProgress | None, timeout: float | None, poll: float
) -> Iterator[float]:
    """Looks at the job at each step and says how long to wait for the next."""
    started = time.monotonic()
    patience = Patience()
    told: JobProgress | None = None
    while True:
        job = _look_patiently(resource, patience)
        if job is not None:
            progress = _progress(job)
            if on_progress is not None and progress != told:
                on_progress(progress)
            told = progress
            if progress.status is HelixJobStatus.COMPLETED:
                return
            if progress.status in HelixJobStatus.terminals():
                raise _not_completed(job)
        left = None if timeout is None else started + timeout - time.monotonic()
        if left is not None and left <= 0:
            where = told.phase if told else "unknown"
            raise TimeoutError(f"job `{resource.name}` did not finish within {timeout:g} s: {where}")
        yield poll if left is None else min(poll, left)


def _look_patiently(resource: AgentEvaluatorJobResource, patience: Patience) -> Job | None:
    """None while the API server is out of reach for a moment: a long run should survive that."""
    try:
        job = resource._look()
    except JobNotCompletedError:
        raise
    except UserError as error:
        patience.bear(error)
        return None
    patience.answered()
    return job


def _progress(job: Job) -> JobProgress:
    progress = job.status.get("progress") or {}
    return JobProgress(
        status=_status(job),
        phase=job.phase,
        done=progress.get("done") or 0,
        failed=progress.get("failed") or 0,
        total=progress.get("total") or 0,
        mean_reward=progress.get("meanReward"),
        message=job.says,
    )


def _status(job: Job) -> HelixJobStatus:
    if not job.status.get("phase"):
        return HelixJobStatus.CREATED
    if not job.finished and (job.body.get("spec") or {}).get("cancel"):
        return HelixJobStatus.CANCELLING
    return _STATUS.get(job.phase, HelixJobStatus.ACTIVE)


def _not_completed(job: Job) -> JobNotCompletedError:
    return JobNotCompletedError(f"job `{job.name}` in namespace `{job.namespace}` is not completed: {job.says}")
