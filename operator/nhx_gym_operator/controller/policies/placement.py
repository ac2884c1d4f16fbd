"""Where a job runs: decided by the administrator's settings and by what the cluster offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...api.conditions import AcceptedReason
from ...api.constants import Isolation
from ...api.job import JobSpec
from ...api.wire import Placement
from ..inputs import Missing
from ..observation import JobRefused
from ..settings import Sandbox, SandboxMode


@dataclass(frozen=True)
class Placed:
    """A placement as it is pinned in the status."""

    placement: Placement
    isolation: Isolation
    runtime_class_name: str | None


def place(spec: JobSpec, sandbox: Sandbox, runtime_class: bool | Missing | None) -> Placed | JobRefused:
    """Fails closed: what needs a sandbox is refused where there is none, naming the setting."""
    trouble = _sandbox_trouble(sandbox, runtime_class)
    if trouble is None:
        runtime = sandbox.runtime_class_name if sandbox.isolation is Isolation.KERNEL else None
        return Placed(Placement.SANDBOXED, sandbox.isolation, runtime)
    if sandbox.mode is SandboxMode.REQUIRED:
        return JobRefused(AcceptedReason.SANDBOX_UNAVAILABLE, f"sandbox.mode is Required, but {trouble}")
    environment = spec.target.gym.environment
    if environment is not None:
        return JobRefused(
            AcceptedReason.ENVIRONMENT_NEEDS_SANDBOX,
            f"the environment FileSet {environment.file_set.name!r} holds code that runs sandboxed or not at "
            f"all, but {trouble}",
        )
    return Placed(Placement.COLOCATED, Isolation.CONTAINER_ONLY, None)


def describe(status: Mapping[str, Any]) -> str:
    """A pinned placement, for the condition of a job that is accepted."""
    if status["placement"] == Placement.COLOCATED:
        return "runs colocated: evaluator and Gym share one container"
    if status["isolation"] == Isolation.KERNEL:
        return f"runs sandboxed under RuntimeClass {status['runtimeClassName']!r}"
    return "runs sandboxed under the cluster's default runtime: container and network policies are the only fence"


def _sandbox_trouble(sandbox: Sandbox, runtime_class: bool | Missing | None) -> str | None:
    if sandbox.mode is SandboxMode.DISABLED:
        return "the operator's setting sandbox.mode is Disabled; an administrator can set it to Auto or Required"
    if sandbox.isolation is Isolation.CONTAINER_ONLY or runtime_class is True:
        return None
    if isinstance(runtime_class, Missing):
        return runtime_class.message
    return (
        f"this cluster has no RuntimeClass {sandbox.runtime_class_name!r}; an administrator can install it, name "
        f"another in the operator's setting sandbox.runtimeClassName, or set sandbox.isolation to ContainerOnly"
    )


def needs_runtime_class(sandbox: Sandbox) -> bool:
    return sandbox.mode is not SandboxMode.DISABLED and sandbox.isolation is Isolation.KERNEL
