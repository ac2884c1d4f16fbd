"""The deadlines that a job's own spec sets. Both count from `status.startTime`, as batch/v1 Job's does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...api.conditions import EXPECTED_WHILE_FALSE, ConditionType, RunReason
from ...api.job import JobSpec
from ...api.waits import without_until
from ..clock import parse_time, seconds_since


@dataclass(frozen=True)
class JobDeadline:
    """One bound of the job, and what is left of it."""

    reason: RunReason
    field: str
    seconds: int
    seconds_left: float

    @property
    def is_over(self) -> bool:
        return self.seconds_left <= 0

    @property
    def is_of_start(self) -> bool:
        return self.reason is RunReason.STARTING_DEADLINE_EXCEEDED

    def __str__(self) -> str:
        return f"{self.field} ({self.seconds} s)"


def of_job(spec: JobSpec, status: dict[str, Any], now: datetime) -> list[JobDeadline]:
    """Those that count at present. None does for a job that has not begun; that of the start ends when all pods have
    started."""
    if "startTime" not in status:
        return []
    passed = seconds_since(parse_time(status["startTime"]), now)
    found = []
    if spec.active_deadline_seconds is not None:
        found.append((RunReason.DEADLINE_EXCEEDED, "spec.activeDeadlineSeconds", spec.active_deadline_seconds))
    if spec.starting_deadline_seconds is not None and "podsStartTime" not in status:
        field = "spec.startingDeadlineSeconds"
        found.append((RunReason.STARTING_DEADLINE_EXCEEDED, field, spec.starting_deadline_seconds))
    return [JobDeadline(reason, field, seconds, seconds - passed) for reason, field, seconds in found]


def waited_for(status: dict[str, Any]) -> str:
    """What kept the job from starting, as its conditions say; empty if they name nothing."""
    found = {entry["type"]: entry for entry in status.get("conditions", ())}
    steps = [found.get(kind) for kind in (ConditionType.ACCEPTED, ConditionType.SANDBOX_READY, ConditionType.RUNNING)]
    waiting = [entry for entry in steps if entry and entry["status"] != "True"]
    first = [entry for entry in waiting if entry["reason"] not in EXPECTED_WHILE_FALSE]
    return without_until(next((entry["message"] for entry in [*first, *waiting]), ""))
