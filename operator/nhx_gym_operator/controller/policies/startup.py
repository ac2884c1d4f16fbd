"""Waiting for pods to run, and the end of waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ...api.conditions import AcceptedReason, ConditionType, PodReason, RunReason
from ...api.constants import CONTAINER_EVALUATE, CONTAINER_GATE, CONTAINER_HOST, STAGE_CONTAINERS
from .. import podview
from ..attempt import Attempt
from ..decision_draft import DecisionDraft
from ..observation import Observation
from . import deadlines, podproblems, sandbox_lacks
from .deadlines import Deadline
from .podproblems import PodProblem

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Waiting:
    """A pod that does not run yet: what is known to be wrong, and how long it may still take."""

    pod: Manifest
    problem: PodProblem | None
    seconds_left: float
    deadline: Deadline
    others_work: bool = False
    """It is a host, and others of the job's do what it would."""

    @property
    def reason(self) -> StrEnum:
        return self.problem.reason if self.problem else PodReason.PODS_CREATED

    @property
    def message(self) -> str:
        return self.problem.message if self.problem else f"pod {podview.name(self.pod)!r} {_set_up(self.pod)}"

    @property
    def missing_name(self) -> str:
        return self.problem.missing_name if self.problem else ""

    @property
    def is_over(self) -> bool:
        return self.seconds_left <= 0 and not self.others_work

    @property
    def end_reason(self) -> StrEnum:
        return AcceptedReason.INPUTS_TIMEOUT if self.missing_name else PodReason.POD_START_TIMEOUT

    @property
    def end_message(self) -> str:
        return f"not running within {self.deadline}: {self.message}"


def waiting(observation: Observation, attempt: Attempt, now: datetime) -> list[Waiting]:
    """The attempt's pods whose main container has not started, those with a known problem first."""
    at_work = any(_works(host) and not podview.has_ended(host) for host in attempt.hosts)
    found = [
        _waiting(pod, observation, now, others_work=at_work and podview.is_host(pod))
        for pod in attempt.pods
        if not podview.has_ended(pod) and not _works(pod)
    ]
    return sorted(found, key=lambda entry: (entry.problem is None, entry.seconds_left))


def has_started(attempt: Attempt) -> bool:
    """Whether the main containers run, or did: the evaluator's, and that of a host if there are any. Collection begins
    with the first host."""
    if attempt.evaluator is None or not podview.has_started(attempt.evaluator, CONTAINER_EVALUATE):
        return False
    return not attempt.hosts or any(podview.has_started(host, CONTAINER_HOST) for host in attempt.hosts)


def show(draft: DecisionDraft, found: Sequence[Waiting]) -> None:
    """What keeps pods from running and until when, on the condition of the pod that it concerns. The first counts
    most."""
    for waiting in reversed(found):
        words = waiting.message
        if not waiting.others_work:
            words += draft.until(waiting.deadline, waiting.seconds_left)
        if podview.is_host(waiting.pod) and (waiting.problem or not waiting.others_work):
            sandbox_lacks.show(draft, waiting.reason, words)
        running = draft.condition(ConditionType.RUNNING) or {}
        # An evaluator that is started again says more of the job than a host beside it.
        if running.get("status") != "True" and running.get("reason") != RunReason.EVALUATOR_RESTARTING:
            draft.set(ConditionType.RUNNING, False, waiting.reason, words)


def _waiting(pod: Manifest, observation: Observation, now: datetime, *, others_work: bool) -> Waiting:
    problem = podproblems.find(pod, observation.pod_events)
    bound = deadlines.of_inputs if problem and problem.missing_name else deadlines.of_pods
    deadline = bound(observation.installation.settings.timeouts)
    return Waiting(pod, problem, deadline.seconds_left(podview.created(pod), now), deadline, others_work)


def _set_up(pod: Manifest) -> str:
    """What a pod does of which nobody complains, and whose containers don't run."""
    node = pod["spec"].get("nodeName")
    return f"is being set up on node {node!r}: images and volumes" if node else "is starting"


def _works(pod: Manifest) -> bool:
    """A container of the pod runs, or its main one did: staging and the gate have bounds of their own."""
    mains = (CONTAINER_EVALUATE, CONTAINER_HOST)
    if any(podview.has_started(pod, main) for main in mains):
        return True
    return any(podview.is_running(pod, init) for init in (*STAGE_CONTAINERS, CONTAINER_GATE))
