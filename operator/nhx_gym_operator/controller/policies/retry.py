"""What follows from an attempt that is lost: another one after a pause, or the end of the job.

A lost attempt is no verdict on the job: a node went away, someone deleted a pod, memory ran out. What
was recorded is on the claim, and the next attempt collects only the rest. With an emptyDir the records
are gone too, and collecting them again would be a second bill that nobody asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from ...api.conditions import RunReason
from ...api.failure_policy import FailureAction
from ..attempt import Attempt
from ..clock import format_time, parse_time, seconds_since
from ..observation import Observation
from . import backoff, loss_cause, recorded


@dataclass(frozen=True)
class Verdict:
    """What follows from a lost attempt: the end of the job, or another attempt."""

    lost: int
    """Attempts of the job that were lost and count, this one too."""
    ignored: int
    """Those that a rule of the job has not counted."""
    reason: StrEnum
    message: str
    again_at: datetime | None = None
    """When the next attempt may start. None: there is none."""


def judge(observation: Observation, attempt: Attempt, loss: str, now: datetime) -> Verdict:
    """Another attempt after a pause, unless records were lost with the evaluator, a rule of the job ends it at such a
    loss, or too many attempts were lost."""
    spec, status = observation.job.spec, observation.job.status
    cause = loss_cause.find(observation, attempt)
    action, where = (spec.failure_policy and spec.failure_policy.on_loss(cause)) or (FailureAction.COUNT, "")
    is_ignored = action is FailureAction.IGNORE
    lost = (status.lost_attempts or 0) + (not is_ignored)
    ignored = (status.ignored_attempts or 0) + is_ignored
    gone = recorded.what_is_gone(observation, attempt)
    if gone:
        return Verdict(lost, ignored, RunReason.RESULTS_LOST, f"{loss}{gone}")
    if action is FailureAction.FAIL_JOB:
        words = f"{loss}; {where} ends the job at an attempt that was lost by {cause}"
        return Verdict(lost, ignored, RunReason.FAILURE_POLICY, words)
    if lost > spec.backoff_limit and not is_ignored:
        words = f"{loss}; {lost} attempts were lost, and spec.backoffLimit is {spec.backoff_limit}"
        return Verdict(lost, ignored, RunReason.BACKOFF_LIMIT_EXCEEDED, words)
    # The pauses grow with each loss all the same: what goes on for ever is to cost little.
    again_at = now + timedelta(seconds=backoff.seconds_after(lost + ignored))
    words = f"{loss}; attempt {attempt.number + 1} follows at {format_time(again_at)}"
    words += f"; not counted against spec.backoffLimit, since {where} ignores {cause}" if is_ignored else ""
    return Verdict(lost, ignored, RunReason.EVALUATOR_LOST, words, again_at)


def seconds_left(status: dict[str, Any], now: datetime) -> float:
    """Of the pause before the next attempt; 0 or less without one."""
    again_at = status.get("nextAttemptTime")
    return seconds_since(now, parse_time(again_at)) if again_at else 0.0
