"""Ends of a job that the evaluator can explain."""

from __future__ import annotations

from ..api.conditions import RunReason, SandboxReason
from ..api.gym_start import NODE_TOO_BUSY, TOO_BUSY
from ..api.wire.reports import FailureClass


class JobFailed(Exception):
    """The job cannot go on. `reason` is one of `api.conditions`, the text is for the user."""

    def __init__(self, reason: str, message: str, failure_class: FailureClass | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.failure_class = failure_class


def gym_not_started(message: str) -> JobFailed:
    """The end of a Gym that could not start. On a node that was too busy it is one of the attempt only, as when the
    node had taken the pod away: the next may find another node, or a calmer one."""
    if NODE_TOO_BUSY.search(message):
        words = f"{TOO_BUSY}: {message}"
        return JobFailed(RunReason.EVALUATOR_LOST, words, FailureClass.KILLED)
    return JobFailed(SandboxReason.HOST_STARTUP_FAILED, message)
