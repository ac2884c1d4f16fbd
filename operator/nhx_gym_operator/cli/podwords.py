"""What each pod of a job is doing, in a reader's words."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..api import pod_facts
from ..api.conditions import ConditionType, RunReason, SandboxReason
from ..api.constants import (
    CONTAINER_EVALUATE,
    CONTAINER_GATE,
    CONTAINER_HOST,
    CONTAINER_OUTCOME,
    STAGE_CONTAINERS,
    Placement,
    Role,
)
from ..client.jobs import Body, Job

# In the order in which a pod passes through them.
_CONTAINERS = (*STAGE_CONTAINERS, CONTAINER_GATE, CONTAINER_EVALUATE, CONTAINER_HOST, CONTAINER_OUTCOME)
_MAIN = (CONTAINER_EVALUATE, CONTAINER_HOST, CONTAINER_OUTCOME)
# How a waiting container looks before anything can be wrong with it.
_NOT_YET = {None, "", "PodInitializing", "ContainerCreating"}


@dataclass(frozen=True)
class PodWords:
    name: str
    role: str
    attempt: int
    doing: str
    trouble: bool
    """Whether it cannot go on, or ended badly."""

    def to_dict(self) -> Body:
        return asdict(self)


def words_of(job: Job, pods: list[Body]) -> list[PodWords]:
    """Of every pod that still exists, the evaluator first in each attempt."""
    order = {Role.EVALUATOR: 0, Role.COLOCATED: 0, Role.GYM_HOST: 1}
    pods = sorted(
        pods, key=lambda pod: (pod_facts.attempt(pod), order.get(pod_facts.role(pod), 2), pod["metadata"]["name"])
    )
    return [_words(job, pod) for pod in pods]


def _words(job: Job, pod: Body) -> PodWords:
    doing, trouble = _doing(job, pod)
    return PodWords(pod["metadata"]["name"], pod_facts.role(pod), pod_facts.attempt(pod), doing, trouble)


def _doing(job: Job, pod: Body) -> tuple[str, bool]:
    if pod["metadata"].get("deletionTimestamp"):
        return "is being ended", False
    scheduled = pod_facts.condition(pod, "PodScheduled") or {}
    if scheduled.get("status") == "False":
        return f"waits for a node: {scheduled.get('message') or scheduled.get('reason')}", True
    for container in _CONTAINERS:
        if pod_facts.container(pod, container) is None:
            continue
        state = pod_facts.state(pod, container)
        if "running" in state:
            return _at_work(job, container), False
        ended = state.get("terminated")
        if ended and (ended.get("exitCode") or container in _MAIN):
            return _end(container, ended)
        waiting = state.get("waiting") or {}
        if waiting.get("reason") not in _NOT_YET:
            said = ": ".join(part for part in (waiting["reason"], waiting.get("message")) if part)
            return f"{container} cannot start: {said}", True
    return _before_any_container(pod)


def _at_work(job: Job, container: str) -> str:
    if container in STAGE_CONTAINERS:
        return f"brings the {container.removeprefix('stage-')} in"
    if container == CONTAINER_GATE:
        return "proves that the sandbox is closed"
    if container == CONTAINER_OUTCOME:
        return "reads how the evaluator had ended"
    if container == CONTAINER_HOST:
        if job.condition(ConditionType.SANDBOX_READY).get("reason") == SandboxReason.SOME_HOSTS_READY:
            return "runs Gym or starts it"
        return "runs Gym" if job.is_true(ConditionType.SANDBOX_READY) else "starts Gym"
    if not job.is_true(ConditionType.RUNNING):
        return "starts Gym" if job.status.get("placement") == Placement.COLOCATED else "waits for Gym"
    reason = job.condition(ConditionType.RUNNING).get("reason")
    words = {RunReason.SCORING: "scores the rollouts", RunReason.UPLOADING: "uploads the results"}
    return words.get(reason, "collects rollouts")


def _end(container: str, ended: Body) -> tuple[str, bool]:
    code = ended.get("exitCode")
    if code == 0:
        return "has ended", False
    return f"{container} ended with exit code {code} ({ended.get('reason') or 'no reason given'})", True


def _before_any_container(pod: Body) -> tuple[str, bool]:
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        said = ": ".join(part for part in (status.get("reason"), status.get("message")) if part)
        return f"failed: {said or 'no reason given'}", True
    return "is being set up on its node: image and volumes", False
