"""`kubectl nhx cancel`: sets `spec.cancel`, which the operator acts on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..client.errors import TimedOut, UserError
from ..client.jobs import JOB_RESOURCE, Body, Job, get_job
from ..client.kubectl import Kubectl
from ..client.patience import Patience

POLL_SECONDS = 1.0
_PATCH = json.dumps({"spec": {"cancel": True}})


@dataclass(frozen=True)
class Outcome:
    """What became of one request."""

    job: Job
    """As it was last seen."""
    before: bool
    """Whether it had ended before."""

    def to_dict(self) -> Body:
        return {
            "name": self.job.name,
            "namespace": self.job.namespace,
            "phase": self.job.phase,
            "endedBefore": self.before,
        }

    @property
    def sentence(self) -> str:
        job = self.job
        if self.before:
            return f"job {job.name} has ended already ({job.phase}); nothing was changed"
        if job.finished:
            return f"job {job.name}: {job.says}"
        return f"job {job.name} is being cancelled; its pods have their grace period to end"


def cancel(
    kubectl: Kubectl, names: Iterable[str], *, wait: bool, timeout: float | None
) -> Iterator[Outcome | UserError]:
    """All are asked before one is waited for, and what goes wrong with one keeps none of the others. `timeout` is for
    all of them together, in seconds."""
    asked = [_ask(kubectl, name) for name in names]
    deadline = None if timeout is None else time.monotonic() + timeout
    for request in asked:
        if isinstance(request, UserError) or not wait:
            yield request
            continue
        job, error = _waited_for(kubectl, request.job, deadline)
        if error:
            yield error
        yield replace(request, job=job)


def _ask(kubectl: Kubectl, name: str) -> Outcome | UserError:
    """One that has ended is left as it is."""
    try:
        job = get_job(kubectl, name)
        if job.finished:
            return Outcome(job, before=True)
        return Outcome(
            Job(kubectl.json("patch", JOB_RESOURCE, name, "--type=merge", f"--patch={_PATCH}")), before=False
        )
    except UserError as error:
        return error


def _waited_for(kubectl: Kubectl, job: Job, deadline: float | None) -> tuple[Job, UserError | None]:
    """The job as it was last seen, and why that is not its end."""
    patience = Patience()
    while not job.finished:
        if deadline is not None and time.monotonic() > deadline:
            return job, TimedOut(f"job `{job.name}` has not ended in the time that it was given ({job.says}).")
        time.sleep(POLL_SECONDS)
        try:
            job = get_job(kubectl, job.name)
        except UserError as error:
            try:
                patience.bear(error)
            except UserError as final:
                return job, final
        else:
            patience.answered()
    return job, None
