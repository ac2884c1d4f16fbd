"""The decision under construction: a status, and what is to be done."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from ..api.conditions import EXPECTED_WHILE_FALSE, ConditionType, RunReason, explaining
from ..api.job import AgentEvalJob
from ..api.waits import without_until
from .clock import format_time
from .inputs import Missing
from .observation import Action, Decision, PodsRefused, ProgressSource
from .policies.deadlines import Deadline, until
from .policies.job_deadlines import JobDeadline
from .policies.phase import phase
from .staging_reports import StagingReport
from .status_draft import StatusDraft

INPUTS_RETRY_SECONDS = 5.0


class DecisionDraft(StatusDraft):
    """Starts with the job's present status, and with nothing to do."""

    def __init__(self, job: AgentEvalJob, now: datetime) -> None:
        super().__init__(job, now)
        self.actions: list[Action] = []
        self.requeue: list[float] = []
        """Seconds until another look, of which the fewest count."""
        self.poll: ProgressSource | None = None
        self.staged: tuple[StagingReport, ...] = ()
        self.due: list[JobDeadline] = []
        """The deadlines of the job's own that count."""

    def decision(self) -> Decision:
        self.data["observedGeneration"] = self._generation
        conditions = self.data.get("conditions", [])
        self.data["phase"] = phase(conditions).value
        if conditions:
            self.data["reason"] = explaining(conditions)["reason"]
        again = min(self.requeue, default=None)
        return Decision(self.fitting(), tuple(self.actions), again, self.poll, self.staged)

    def wait(
        self, why: Missing | PodsRefused, deadline: Deadline, end_reason: StrEnum, shown_on: ConditionType
    ) -> float:
        """Shows what the job waits for, and tells for how many seconds it still may. With none left it fails."""
        self.set(shown_on, False, why.reason, why.message)
        left = deadline.seconds_left(self.since(shown_on), self._now)
        self.set(shown_on, False, why.reason, why.message + self.until(deadline, left))
        if left <= 0:
            self.fail(end_reason, deadline.still_so(why.message))
        return left

    def wait_for(
        self,
        missing: Missing,
        deadline: Deadline,
        end_reason: StrEnum,
        shown_on: ConditionType = ConditionType.ACCEPTED,
    ) -> None:
        """As `wait`, for what nobody tells the operator of: it looks again in a few seconds."""
        left = self.wait(missing, deadline, end_reason, shown_on)
        if left > 0:
            self.requeue.append(min(left, INPUTS_RETRY_SECONDS))

    def until(self, deadline: Deadline, left: float) -> str:
        """The words on when a wait ends at last: by its own bound, or by one of the job's that comes first."""
        first = min(self.due, key=lambda due: due.seconds_left, default=None)
        if first and first.seconds_left < left:
            return until(first.seconds_left, self._now, first.field)
        return deadline.until(left, self._now)

    def fail(self, reason: StrEnum | str, message: str) -> None:
        if self.condition(ConditionType.RUNNING):
            self.set(ConditionType.RUNNING, False, RunReason.RUN_ENDED, "the job ended without a result")
        self.set(ConditionType.FAILED, True, reason, message)
        self.complete()

    def complete(self) -> None:
        sandbox = self.condition(ConditionType.SANDBOX_READY)
        if sandbox and sandbox["status"] == "False" and sandbox["reason"] in EXPECTED_WHILE_FALSE:
            # Nothing is going to be shown any more.
            words = "the job ended before Gym was seen to answer"
            self.set(ConditionType.SANDBOX_READY, False, RunReason.RUN_ENDED, words)
        for entry in self.data.get("conditions", ()):
            # What was waited for stays to be read, and nothing waits until some time any more.
            entry["message"] = without_until(entry["message"])
        self.data["completionTime"] = format_time(self._now)
        self.data.pop("nextAttemptTime", None)
        # What was to be done for a job that goes on is void; its pods are removed once this is written.
        self.actions.clear()
        self.requeue = [0.0]
        self.poll = None
