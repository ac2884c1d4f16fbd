"""The condition Running of a job whose pods exist."""

from __future__ import annotations

from ...api.conditions import ConditionType, PodReason, RunReason
from ...api.wire.endpoints import Progress, Stage
from ..draft import StatusDraft

_WORDS = {
    RunReason.COLLECTING: "rollouts are being collected",
    RunReason.SCORING: "the rollouts are being scored",
    RunReason.UPLOADING: "the results are being uploaded",
}
_REASONS = {Stage.COLLECTING: RunReason.COLLECTING, Stage.UPLOADING: RunReason.UPLOADING}


def show(draft: StatusDraft, progress: Progress | None) -> None:
    """From what the evaluator answers. An operator that came back keeps what the status says until it knows more."""
    if progress is not None and progress.stage is not Stage.STARTING:
        reason = _REASONS.get(progress.stage, RunReason.SCORING)
        draft.set(ConditionType.RUNNING, True, reason, progress.message or _WORDS[reason])
    elif not draft.is_true(ConditionType.RUNNING):
        words = progress.message if progress and progress.message else "the job's pods were created"
        draft.set(ConditionType.RUNNING, False, PodReason.PODS_CREATED, words)
