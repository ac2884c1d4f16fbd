"""What ends a job before it is done: `spec.cancel` and its deadlines. Its pods end within their grace, and then so has
the job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...api.conditions import RunReason
from .. import attempt as attempts
from .. import podview, status_fields
from ..attempt import Attempt
from ..observation import Observation
from ..status_draft import StatusDraft
from . import evaluator_end, job_deadlines, recorded


@dataclass(frozen=True)
class Stop:
    """Why a job ends, in words that go on with how far it was."""

    reason: RunReason
    """Of `Failed`, once the pods have ended."""
    ending: RunReason
    """Of `Running`, while they do."""
    words: str
    waited_for: str = ""
    """What kept a job from starting."""

    @property
    def ending_words(self) -> str:
        return self.waited_for or f"{self.words}; the pods are ending"


_CANCEL = Stop(RunReason.CANCELLED, RunReason.CANCELLING, "cancelled by spec.cancel")


def find(observation: Observation, attempt: Attempt, status: dict[str, Any], now: datetime) -> Stop | None:
    """Why the job is to end now. None if it goes on, or has an end of its own."""
    if has_its_own_end(attempt):
        return None
    if observation.job.spec.cancel:
        return _CANCEL
    over = [deadline for deadline in job_deadlines.of_job(observation.job.spec, status, now) if deadline.is_over]
    if not over:
        return None
    deadline = over[0]
    waited_for = job_deadlines.waited_for(status) if deadline.is_of_start else ""
    return Stop(deadline.reason, deadline.reason, f"ended by {deadline}", waited_for)


def has_its_own_end(attempt: Attempt) -> bool:
    """Whether the evaluator ended by itself, or was done before its grace was over. A failure that came of taking its
    pods down is neither."""
    ended = evaluator_end.final_outcome(attempt.evaluator)
    if ended is None or attempt.evaluator is None:
        return False
    return ended.state == "Complete" or not podview.is_terminating(attempt.evaluator)


def show_what_there_is(draft: StatusDraft, observation: Observation, attempt: Attempt) -> None:
    """The evaluator's last word, which it has its grace period to write; else what it answered last."""
    evaluator = attempts.last_evaluator(observation, attempt)
    said = evaluator_end.last_outcome(evaluator)
    progress = observation.progress_of(attempt.number)
    if said:
        status_fields.show_outcome(draft, said)
    elif progress:
        status_fields.show_progress(draft, progress)


def message(stop: Stop, observation: Observation, status: dict[str, Any]) -> str:
    """For the condition: why, how far the job was, and where its records are."""
    so_far = recorded.so_far(status)
    if not so_far:
        waited = f"; it waited: {stop.waited_for}" if stop.waited_for else ""
        return f"{stop.words} before a rollout was recorded{waited}"
    kept = "they stay on the claim" if recorded.outlives_pods(observation) else "they went with the evaluator's pod"
    return f"{stop.words} with {so_far} recorded; {kept}"
