"""What the evaluator said at its end, whether that end is final, and what it means for the job."""

from __future__ import annotations

from typing import Any

from ...api.conditions import ConditionType, RunReason
from ...api.constants import CONTAINER_EVALUATE
from ...api.outcome import OutcomeError, decode_outcome
from ...api.wire.reports import Outcome
from .. import podview
from ..status_draft import StatusDraft

Manifest = dict[str, Any]


def final_outcome(evaluator: Manifest | None) -> Outcome | None:
    """The outcome with which the evaluator ended by itself. None while it runs, when it was killed, and
    when it left none: other containers of the pod have no say."""
    outcome = last_outcome(evaluator)
    return outcome if outcome and outcome.is_final else None


def last_outcome(evaluator: Manifest | None) -> Outcome | None:
    """The outcome in the ended evaluator's message, final or not."""
    return outcome_of(evaluator, CONTAINER_EVALUATE)


def outcome_of(pod: Manifest | None, container: str) -> Outcome | None:
    """The outcome in an ended container's message; None if there is none."""
    ended = podview.terminated(pod, container) if pod else None
    if ended is None:
        return None
    try:
        return decode_outcome(ended.get("message", ""))
    except OutcomeError:
        return None


def conclude(draft: StatusDraft, outcome: Outcome) -> None:
    """Complete, Degraded and Failed of a run that came to its end."""
    if outcome.state != "Complete":
        reason = outcome.reason or RunReason.EVALUATION_FAILED
        message = _sentences([outcome.message or "the evaluator gave no reason", *outcome.warnings])
        draft.set(ConditionType.FAILED, True, reason, message)
        return
    lacking = outcome.progress.total - outcome.progress.done
    counted = f"{outcome.progress.done} of {outcome.progress.total} rollouts have a reward"
    reason = RunReason.MIN_COVERAGE_REACHED if lacking > 0 else RunReason.ALL_ROLLOUTS_RECORDED
    draft.set(ConditionType.COMPLETE, True, reason, _sentences([counted, *outcome.warnings]))
    if lacking > 0:
        draft.set(ConditionType.DEGRADED, True, RunReason.ROLLOUTS_MISSING, _sentences(outcome.degraded or [counted]))
    elif outcome.upload_failed:
        draft.set(ConditionType.DEGRADED, True, RunReason.UPLOAD_FAILED, _sentences(outcome.degraded))
    elif outcome.degraded:
        draft.set(ConditionType.DEGRADED, True, RunReason.AGGREGATES_MISSING, _sentences(outcome.degraded))


def _sentences(parts: list[str]) -> str:
    return "; ".join(part for part in parts if part)
