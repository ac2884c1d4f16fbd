"""Submitting the live runner that was tried locally."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from nhx_evals_sdk.agent_eval.runtimes.gym import GymAgentTaskRunner
from nhx_evals_sdk.agent_eval.tasks import AgentEvalRunConfig, AgentEvalTask

from ..api.models import ModelSpec
from ..api.resource import KeyRef
from ..api.results import Results
from ..api.tasks import Tasks
from ..client.creation import config_map, create_job
from ..client.kubectl import Kubectl
from .convert import DEFAULT_RESULTS, TASKSET_KEY, job_of, manifest_of, new_name
from .errors import SubmissionError, UnsubmittableRunnerError
from .gym_version import version_warning
from .handle import AgentEvaluatorJobResource, AsyncAgentEvaluatorJobResource
from .runner import target_of_runner
from .target import AgentEvalInputSpec, GymPlacement, GymRunnerTarget, TasksetRef
from .taskset import fitting, taskset_text

_NOTHING: Mapping[str, KeyRef] = {}
_NOT_HERE = ("work_dir", "run_id", "prompt_template", "params")
"""Fields of a run configuration that mean nothing to a job: directory and id are its own, and Gym makes the prompts."""


def submit(
    *,
    tasks: Sequence[AgentEvalTask] | TasksetRef | Tasks,
    target: GymAgentTaskRunner,
    placement: GymPlacement | None = None,
    config: AgentEvalRunConfig | None = None,
    models: Sequence[ModelSpec] = (),
    secrets: Mapping[str, KeyRef] = _NOTHING,
    results: Results = DEFAULT_RESULTS,
    name: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
) -> AgentEvaluatorJobResource:
    """Runs on the cluster what `AgentEvaluator().run(tasks=tasks, target=target, config=config)` runs here.

    `tasks`, `target` and `placement` are those of evals/sdk-resources.mdx; the rest is ours. Tasks are stored in a
    ConfigMap that goes with the job; `TasksetRef` names one that is there, and `Tasks` any other source. `config` gives
    `parallelism`, `labels` and `fail_fast`. The route to a model is in the runner's `hydra_params` or else in `models`.
    `secrets` says for references of `env_secrets` which key of which Secret they are, where it is not `value`. The
    cluster is that of kubectl: the same kubeconfig, context and namespace.

    Raises UnsubmittableRunnerError naming the runner's field, SubmissionError for anything else that cannot be
    submitted, UserError with the cluster's words if it refuses. Warns if the local Gym is another version than the
    job's.
    """
    described = target_of_runner(target, placement)
    name = name or new_name(described.resources_server)
    stored, text = _tasks(tasks, name)
    spec = _spec(described, config)
    if isinstance(tasks, TasksetRef):
        spec = spec.model_copy(update={"tasks": tasks.root})
    try:
        job = job_of(
            spec, name=name, namespace=namespace, tasks=stored, models=models, results=results, secrets=secrets
        )
    except SubmissionError as error:
        if not str(error).startswith("target."):
            raise
        raise UnsubmittableRunnerError(f"{type(target).__name__}: {error}") from None
    kubectl = Kubectl.find(kubeconfig, context, job.metadata.namespace or namespace)
    warning = version_warning()
    if warning:
        warnings.warn(warning, stacklevel=2)
    own = [] if text is None else [config_map(_taskset_name(name), data={TASKSET_KEY: text}, immutable=True)]
    return AgentEvaluatorJobResource(kubectl, create_job(kubectl, manifest_of(job), own))


async def submit_async(**arguments: Any) -> AsyncAgentEvaluatorJobResource:
    """`submit` for asynchronous programs, with the same arguments. Who stops awaiting it does not stop it: the job is
    made whole."""
    return AsyncAgentEvaluatorJobResource(await asyncio.to_thread(submit, **arguments))


def _tasks(tasks: Sequence[AgentEvalTask] | TasksetRef | Tasks, job: str) -> tuple[Tasks | None, str | None]:
    """The job's tasks (None: those that the spec refers to), and what has to be stored for them."""
    if isinstance(tasks, TasksetRef):
        return None, None
    if isinstance(tasks, Tasks):
        return tasks, None
    return _stored(_taskset_name(job)), fitting(taskset_text(tasks))


def _stored(config_map: str) -> Tasks:
    return Tasks.model_validate({"taskset": {"configMap": {"name": config_map, "key": TASKSET_KEY}}})


def _taskset_name(job: str) -> str:
    return f"{job[:240]}-tasks"


def _spec(target: GymRunnerTarget, config: AgentEvalRunConfig | None) -> AgentEvalInputSpec:
    config = config or AgentEvalRunConfig()
    for field in _NOT_HERE:
        if getattr(config, field) is not None:
            raise SubmissionError(f"config.{field} has no meaning for a job; leave it out")
    return AgentEvalInputSpec(
        tasks="stated-beside-it",
        target=target,
        max_concurrent_tasks=config.parallelism,
        fail_fast=config.fail_fast,
        labels=config.labels,
    )
