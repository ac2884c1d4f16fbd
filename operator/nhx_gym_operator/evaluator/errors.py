"""Ends of a job that the evaluator can explain."""

from __future__ import annotations

from ..api.wire.reports import FailureClass


class JobFailed(Exception):
    """The job cannot go on. `reason` is one of `api.conditions`, the text is for the user."""

    def __init__(self, reason: str, message: str, failure_class: FailureClass | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.failure_class = failure_class
