"""Where a job runs: decided by the administrator's settings and by what the cluster offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...api.conditions import AcceptedReason, ConditionType
from ...api.constants import Isolation, Placement
from ...api.job import JobSpec
from ...api.status import MAX_PLACEMENT_REASON
from ..inputs import Missing
from ..measuring.findings import Standing, State
from ..observation import JobRefused
from ..settings import Sandbox, SandboxMode
from ..status_draft import StatusDraft


@dataclass(frozen=True)
class Placed:
    """A placement as it is pinned in the status."""

    placement: Placement
    isolation: Isolation
    runtime_class_name: str | None
    reason: str
    """For people: what was measured, or why there is no sandbox."""

    @property
    def fields(self) -> dict[str, str]:
        """As the job's status takes them."""
        fields = {
            "placement": self.placement.value,
            "isolation": self.isolation.value,
            "placementReason": self.reason[:MAX_PLACEMENT_REASON],
        }
        return fields | ({"runtimeClassName": self.runtime_class_name} if self.runtime_class_name else {})


def place(
    spec: JobSpec, sandbox: Sandbox, runtime_class: bool | Missing | None, standing: Standing | None
) -> Placed | JobRefused | Missing:
    """Fails closed: what needs a sandbox is refused where there is none, naming the setting. `Missing`: it is not known
    yet whether there is one, and nothing is placed on a guess."""
    trouble = _sandbox_trouble(sandbox, runtime_class, standing)
    if isinstance(trouble, Missing):
        return trouble
    if trouble is None:
        runtime = sandbox.runtime_class_name if sandbox.isolation is Isolation.KERNEL else None
        return Placed(Placement.SANDBOXED, sandbox.isolation, runtime, standing.message if standing else _UNMEASURED)
    if sandbox.mode is SandboxMode.REQUIRED:
        return JobRefused(AcceptedReason.SANDBOX_UNAVAILABLE, f"sandbox.mode is Required, but {trouble}")
    environment = spec.target.gym.environment
    if environment is not None:
        return JobRefused(
            AcceptedReason.ENVIRONMENT_NEEDS_SANDBOX,
            f"the environment FileSet {environment.file_set.name!r} holds code that runs sandboxed or not at "
            f"all, but {trouble}",
        )
    if spec.hosts > 1:
        return JobRefused(
            AcceptedReason.HOSTS_NEED_SANDBOX,
            f"spec.hosts is {spec.hosts}, and only a sandboxed job has gym hosts of its own, but {trouble}; or set "
            f"spec.hosts to 1",
        )
    return Placed(Placement.COLOCATED, Isolation.CONTAINER_ONLY, None, trouble)


def refuse_pinned(spec: JobSpec, status: Mapping[str, Any]) -> JobRefused | None:
    """A status that puts code of a FileSet beside the model's key was not written by this operator."""
    environment = spec.target.gym.environment
    if environment is None or status["placement"] == Placement.SANDBOXED:
        return None
    return JobRefused(
        AcceptedReason.ENVIRONMENT_NEEDS_SANDBOX,
        f"the environment FileSet {environment.file_set.name!r} holds code that runs sandboxed or not at all, but "
        f"status.placement is {status['placement']!r}, which somebody else wrote; apply the job again, and let nobody "
        f"but the operator patch agentevaljobs/status",
    )


def another_sandbox(status: Mapping[str, Any], sandbox: Sandbox) -> str:
    """Why a pinned sandbox is none of the present settings; empty if it is one. Whoever may write a status could name
    one there that isolates less, and a new pod would get it; one that was pinned before the settings changed looks the
    same, and is not what an administrator wants any more either."""
    if status["placement"] != Placement.SANDBOXED:
        return ""
    isolation, runtime = status.get("isolation"), status.get("runtimeClassName")
    wanted = sandbox.runtime_class_name
    if runtime == wanted and isolation == Isolation.KERNEL:
        return ""
    if isolation == sandbox.isolation == Isolation.CONTAINER_ONLY and not runtime:
        return ""
    asked = f"RuntimeClass {wanted!r}" if sandbox.isolation is Isolation.KERNEL else "ContainerOnly"
    return (
        f"status says that its sandbox is {isolation} with RuntimeClass {runtime!r}, and the operator's settings "
        f"(sandbox.isolation, sandbox.runtimeClassName) ask for {asked}: they were changed since, or somebody else "
        f"wrote the status. It gets no further pods; apply the job again"
    )


def show_accepted(draft: StatusDraft) -> None:
    """The condition Accepted of a job whose placement is pinned."""
    draft.set(ConditionType.ACCEPTED, True, AcceptedReason.ACCEPTED, _described(draft.data))


def _described(status: Mapping[str, Any]) -> str:
    if status["placement"] == Placement.COLOCATED:
        return "runs colocated: evaluator and Gym share one container"
    if status["isolation"] == Isolation.KERNEL:
        return f"runs sandboxed under RuntimeClass {status['runtimeClassName']!r}"
    return "runs sandboxed under the cluster's default runtime: container and network policies are the only fence"


def still_unfenced(status: Mapping[str, Any], sandbox: Sandbox, standing: Standing | None) -> str:
    """Why a job that was placed in a sandbox gets no pods now; empty if it does. What is measured is the sandbox of the
    present settings, and tells nothing about another one that was pinned before they changed."""
    if standing is None or standing.state not in (State.FAILS, State.IN_DOUBT):
        return ""
    if status["placement"] != Placement.SANDBOXED:
        return ""
    same = status["isolation"] == sandbox.isolation and (
        sandbox.isolation is Isolation.CONTAINER_ONLY or status.get("runtimeClassName") == sandbox.runtime_class_name
    )
    return standing.message if same else ""


_UNMEASURED = "the sandbox was not measured (the operator's setting canary)"


def _sandbox_trouble(
    sandbox: Sandbox, runtime_class: bool | Missing | None, standing: Standing | None
) -> str | Missing | None:
    if sandbox.mode is SandboxMode.DISABLED:
        return "the operator's setting sandbox.mode is Disabled; an administrator can set it to Auto or Required"
    if sandbox.isolation is Isolation.KERNEL and runtime_class is False:
        return (
            f"this cluster has no RuntimeClass {sandbox.runtime_class_name!r}; an administrator can install it, name "
            f"another in the operator's setting sandbox.runtimeClassName, or set sandbox.isolation to ContainerOnly"
        )
    if standing is None:
        # Without a measurement, that the RuntimeClass exists has to do; and with one it need not be looked up.
        return runtime_class.message if isinstance(runtime_class, Missing) else None
    if standing.state is State.FAILS:
        return standing.message
    if standing.state is not State.HOLDS:
        return Missing(AcceptedReason.SANDBOX_NOT_MEASURED, standing.message)
    return None


def needs_runtime_class(sandbox: Sandbox) -> bool:
    return sandbox.mode is not SandboxMode.DISABLED and sandbox.isolation is Isolation.KERNEL
