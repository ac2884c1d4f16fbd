"""Spec file to AgentEvalJob: the same evaluation in the other shape.

Nothing is lost but how secrets are named: tests make the file of a job again.
"""

from __future__ import annotations

import re
import secrets as random
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..api.credentials import is_credential
from ..api.job import AgentEvalJob, JobSpec
from ..api.models import ModelSpec
from ..api.resource import FileSetName, KeyRef, ObjectMeta
from ..api.results import ClaimResults, Results
from ..api.target import Environment, GymSpec, Target
from ..api.tasks import Tasks, Taskset
from .errors import SubmissionError
from .references import namespace_of, object_name, secret_of
from .routes import route_of
from .target import AgentEvalInputSpec

TASKSET_KEY = "taskset.jsonl"
"""Key of the ConfigMap that holds a stored taskset. Ours: a reference has no room for one."""
DEFAULT_RESULTS = Results(persistent_volume_claim=ClaimResults(size="1Gi"))
"""A submitted job is one to come back to, so its bundle outlives its pods. Ours, as is the size."""
_SAME = (
    "resources_server", "model_type", "bind_resources_server", "env_vars", "num_repeats", "concurrency", "reward_key",
)  # fmt: skip
_SECONDS = {
    "startup_timeout_s": "startup_timeout_seconds",
    "collection_timeout_s": "collection_timeout_seconds",
    "shutdown_grace_s": "shutdown_grace_seconds",
}
_RENAMED = {
    **{ours: theirs for theirs, ours in _SECONDS.items()},
    "agent": "source.component",
    "agent_config": "source.config",
    "agent_ref_name": "source.instance",
    "parallelism": "max_concurrent_tasks",
}
_NOTHING: Mapping[str, KeyRef] = {}


def job_of(
    spec: AgentEvalInputSpec,
    *,
    name: str,
    namespace: str | None = None,
    tasks: Tasks | None = None,
    models: Sequence[ModelSpec] = (),
    results: Results = DEFAULT_RESULTS,
    secrets: Mapping[str, KeyRef] = _NOTHING,
) -> AgentEvalJob:
    """The job of a spec file; `manifest_of` makes what is applied.

    `tasks` replaces the taskset that the file names, `models` what its hydra_params say of models of the same name.
    `secrets` maps references as they are written to the key of a Secret, where it is not `value`. The job's namespace
    is empty where neither `namespace` nor the file names one. Raises SubmissionError naming the file's field.
    """
    target = spec.target
    where = namespace_of(_references(spec, with_tasks=tasks is None), namespace)
    _refuse_plain_credentials(target.env_vars)
    route = route_of(
        target.hydra_params,
        target.env_secrets,
        models,
        lambda field, reference: secret_of(field, reference, secrets),
    )
    if target.source.config is None and target.environment is None:
        raise SubmissionError(
            "target.source.config is missing: the agent's configuration, relative to NeMo Gym's root. Only an "
            "environment that declares the agent can do without it"
        )
    try:
        gym = GymSpec(
            agent=target.source.component,
            agent_config=target.source.config,
            agent_ref_name=target.source.instance,
            hydra_params=route.hydra_params,
            env_secrets=route.env_secrets,
            environment=_environment(target.environment),
            **{field: getattr(target, field) for field in _SAME},
            **{ours: getattr(target, theirs) for theirs, ours in _SECONDS.items()},
        )
        job_spec = JobSpec(
            tasks=tasks or _taskset(spec.tasks),
            target=Target(gym=gym),
            models=route.models,
            results=results,
            parallelism=spec.max_concurrent_tasks,
            fail_fast=spec.fail_fast,
            labels=spec.labels,
        )
    except ValidationError as error:
        raise SubmissionError(_in_the_files_words(error)) from None
    return AgentEvalJob(metadata=ObjectMeta(name=name, namespace=where or ""), spec=job_spec)


def manifest_of(job: AgentEvalJob) -> dict[str, Any]:
    """What to apply: only what differs from a default, which the API server fills in."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    names = {"name": job.metadata.name, "namespace": job.metadata.namespace}
    metadata = {field: value for field, value in names.items() if value}
    return {"apiVersion": job.api_version, "kind": job.kind, "metadata": metadata, "spec": spec}


def new_name(resources_server: str) -> str:
    """A name for a job that nobody named: its resources server and five letters or digits."""
    stem = re.sub(r"[^a-z0-9]+", "-", resources_server.lower()).strip("-")[:32].strip("-")
    return f"{stem or 'gym'}-{random.token_hex(3)[:5]}"


def _references(spec: AgentEvalInputSpec, *, with_tasks: bool) -> list[tuple[str, str]]:
    found = [("tasks", spec.tasks)] if with_tasks else []
    if spec.target.environment is not None:
        found.append(("target.environment", spec.target.environment))
    return found + [(f"target.env_secrets.{name}", reference) for name, reference in spec.target.env_secrets.items()]


def _taskset(reference: str) -> Tasks:
    name = object_name("tasks", reference, "a ConfigMap")
    return Tasks(taskset=Taskset(config_map=KeyRef(name=name, key=TASKSET_KEY)))


def _environment(reference: str | None) -> Environment | None:
    if reference is None:
        return None
    return Environment(file_set=FileSetName(name=object_name("target.environment", reference, "a FileSet")))


def _refuse_plain_credentials(env_vars: Mapping[str, str]) -> None:
    for name, value in env_vars.items():
        if is_credential(name, value):
            raise SubmissionError(
                f"target.env_vars.{name} looks like a credential in plain text: put the value into a Secret and name "
                f"that in target.env_secrets instead ({name}: SECRET)"
            )


def _in_the_files_words(error: ValidationError) -> str:
    faults = []
    for fault in error.errors(include_input=False, include_url=False, include_context=False):
        field = ".".join(_file_name(str(part)) for part in fault["loc"])
        known = field if field.split(".")[0] in AgentEvalInputSpec.model_fields else f"target.{field}"
        faults.append(f"{known}: {fault['msg']}")
    return "; ".join(faults)


def _file_name(field: str) -> str:
    name = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", field)
    return _RENAMED.get(name, name)
