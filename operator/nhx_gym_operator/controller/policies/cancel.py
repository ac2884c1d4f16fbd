"""What `spec.cancel` means for a job that has not ended: its pods end within their grace, and then so has the job."""

from __future__ import annotations

from typing import Any

from ...api.wire import Outcome
from .. import attempt as attempts
from .. import podview, status_fields
from ..attempt import Attempt
from ..draft import StatusDraft
from ..observation import Observation
from . import evaluator_end, retry


def is_wanted(observation: Observation, attempt: Attempt, ended: Outcome | None) -> bool:
    """Whether the job is to end as cancelled. One whose evaluator ended by itself has its own end; a failure that
    came of taking its pods down is none of these."""
    if not observation.job.spec.cancel:
        return False
    by_itself = ended is not None and attempt.evaluator is not None and not podview.is_terminating(attempt.evaluator)
    return not by_itself and not (ended and ended.state == "Complete")


def show_what_there_is(draft: StatusDraft, observation: Observation, attempt: Attempt) -> None:
    """The evaluator's last word, which it has its grace period to write; else what it answered last."""
    evaluator = attempts.last_evaluator(observation, attempt)
    said = evaluator_end.last_outcome(evaluator)
    progress = observation.progress_of(attempt.number)
    if said:
        status_fields.show_outcome(draft, said)
    elif progress:
        status_fields.show_progress(draft, progress)


def message(observation: Observation, status: dict[str, Any]) -> str:
    """For the condition: how far the job was, and where its records are."""
    progress = status.get("progress") or {}
    recorded = progress.get("done", 0) + progress.get("failed", 0)
    if not recorded:
        return "cancelled by spec.cancel before a rollout was recorded"
    kept = "they stay on the claim" if retry.keeps_results(observation) else "they went with the evaluator's pod"
    return f"cancelled by spec.cancel with {recorded} of {progress['total']} rollouts recorded; {kept}"
