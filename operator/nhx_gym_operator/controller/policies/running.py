"""The condition Running of a job whose pods exist."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ...api.conditions import ConditionType, PodReason, RunReason
from ...api.constants import CONTAINER_EVALUATE
from ...api.wire.endpoints import Stage
from .. import podview
from ..attempt import Attempt
from ..observation import Observation
from ..status_draft import StatusDraft
from . import restarts

_WORDS = {
    RunReason.COLLECTING: "rollouts are being collected",
    RunReason.SCORING: "the rollouts are being scored",
    RunReason.UPLOADING: "the results are being uploaded",
}
_REASONS = {Stage.COLLECTING: RunReason.COLLECTING, Stage.UPLOADING: RunReason.UPLOADING}


def show(draft: StatusDraft, observation: Observation, attempt: Attempt, now: datetime) -> None:
    """From what the evaluator answers. An operator that came back keeps what the status says until it knows more."""
    evaluator, progress = attempt.evaluator, restarts.answer(observation, attempt)
    silence = _silence(observation, evaluator)
    also = silence and f"; {silence}"
    back = progress is not None and progress.stage is not Stage.STARTING
    if evaluator and (restarts.is_under_way(evaluator) or (_was_restarted(draft, observation, evaluator) and not back)):
        words = restarts.words_meanwhile(observation.job.spec, evaluator, draft.data, now)
        waits = f"; {progress.message}" if progress and progress.message else ""
        draft.set(ConditionType.RUNNING, False, RunReason.EVALUATOR_RESTARTING, words + waits + also)
    elif progress is not None and back:
        reason = _REASONS.get(progress.stage, RunReason.SCORING)
        words = progress.message or _WORDS[reason]
        afterwards = restarts.words_afterwards(evaluator) if evaluator else ""
        draft.set(ConditionType.RUNNING, True, reason, words + afterwards + also)
    elif not draft.is_true(ConditionType.RUNNING):
        words = silence or (progress and progress.message) or "the job's pods were created"
        draft.set(ConditionType.RUNNING, False, PodReason.PODS_CREATED, words)
    elif silence:
        draft.set(ConditionType.RUNNING, True, _known_reason(draft), silence)


def _known_reason(draft: StatusDraft) -> RunReason:
    shown = draft.condition(ConditionType.RUNNING) or {}
    return next((reason for reason in _WORDS if reason == shown.get("reason")), RunReason.COLLECTING)


def _silence(observation: Observation, evaluator: dict[str, Any] | None) -> str:
    """Of an evaluator whose container runs and that does not answer. It may be at work all the same, and its end is
    seen without an answer: so that alone ends nothing."""
    if not evaluator or not observation.is_silent or not podview.is_running(evaluator, CONTAINER_EVALUATE):
        return ""
    return (
        f"pod {podview.name(evaluator)!r} runs and does not answer the operator: its program is busy, frozen or not "
        f"this project's, or something keeps the operator from reaching it; `kubectl nhx logs` has what it logged last"
    )


def _was_restarted(draft: StatusDraft, observation: Observation, evaluator: dict[str, Any]) -> bool:
    """Whether it was, and this operator need not ask first whether it is back at work."""
    unknown = observation.progress is None and draft.is_true(ConditionType.RUNNING)
    return podview.restarts(evaluator, CONTAINER_EVALUATE) > 0 and not unknown
