"""Waiting for pods to run, and the end of waiting."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ...api.conditions import AcceptedReason, PodReason
from ...api.constants import CONTAINER_EVALUATE, CONTAINER_GATE, CONTAINER_HOST, STAGE_CONTAINERS
from .. import podview
from ..clock import seconds_since
from ..observation import Observation
from ..settings import Timeouts
from . import podproblems
from .attempt import Attempt
from .podproblems import PodProblem

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Waiting:
    """A pod that does not run yet: what is known to be wrong, and how long it may still take."""

    pod: Manifest
    problem: PodProblem | None
    seconds_left: float
    limit: float
    setting: str

    @property
    def reason(self) -> StrEnum:
        return self.problem.reason if self.problem else PodReason.PODS_CREATED

    @property
    def message(self) -> str:
        return self.problem.message if self.problem else f"pod {podview.name(self.pod)!r} is starting"

    @property
    def is_over(self) -> bool:
        return self.seconds_left <= 0

    @property
    def end_reason(self) -> StrEnum:
        missing = self.problem is not None and self.problem.missing_input
        return AcceptedReason.INPUTS_TIMEOUT if missing else PodReason.POD_START_TIMEOUT

    @property
    def end_message(self) -> str:
        return f"not running within {self.limit:g} s (the operator's setting {self.setting}): {self.message}"


def waiting(observation: Observation, attempt: Attempt, now: datetime) -> list[Waiting]:
    """The attempt's pods whose main container has not started, those with a known problem first."""
    found = [_waiting(pod, observation, now) for pod in attempt.pods if not podview.has_ended(pod) and not _works(pod)]
    return sorted(found, key=lambda entry: (entry.problem is None, entry.seconds_left))


def _waiting(pod: Manifest, observation: Observation, now: datetime) -> Waiting:
    problem = podproblems.find(pod, observation.pod_events)
    timeouts: Timeouts = observation.installation.settings.timeouts
    if problem and problem.missing_input:
        limit, setting = timeouts.wait_for_inputs_seconds, "timeouts.waitForInputsSeconds"
    else:
        limit, setting = timeouts.pod_start_seconds, "timeouts.podStartSeconds"
    left = limit - seconds_since(podview.created(pod), now)
    return Waiting(pod, problem, left, limit, setting)


def _works(pod: Manifest) -> bool:
    """A container of the pod runs, or its main one did: staging and the gate have bounds of their own."""
    mains = (CONTAINER_EVALUATE, CONTAINER_HOST)
    if any(podview.has_started(pod, main) for main in mains):
        return True
    return any(podview.is_running(pod, init) for init in (*STAGE_CONTAINERS, CONTAINER_GATE))
