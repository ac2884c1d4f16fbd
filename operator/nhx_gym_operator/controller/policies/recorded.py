"""What a job has recorded, and whether that outlives its pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...api.conditions import ConditionType
from ...api.constants import CONTAINER_EVALUATE
from ...api.wire.endpoints import Progress, Stage
from .. import podview
from ..attempt import Attempt, last_evaluator
from ..observation import Observation
from . import evaluator_end, kept_outcome


def so_far(status: Mapping[str, Any]) -> str:
    """How much the status counts, "3 of 8 rollouts" for instance; empty if nothing."""
    progress = status.get("progress") or {}
    number = progress.get("done", 0) + progress.get("failed", 0)
    return f"{number} of {progress['total']} rollouts" if number else ""


def outlives_pods(observation: Observation) -> bool:
    return observation.job.spec.results.persistent_volume_claim is not None


def what_is_gone(observation: Observation, attempt: Attempt) -> str:
    """How the records of rollouts that may have been paid for were lost, as a sentence goes on; empty if they stand."""
    if not outlives_pods(observation):
        if not may_have_collected(observation, attempt):
            return ""
        store = observation.job.spec.results.object_store
        brought = " (unless the bundle had been brought to the object store by then)" if store else ""
        advice = "to survive this, set spec.results.persistentVolumeClaim"
        return f", and with it the emptyDir that held the results{brought}; {advice}"
    if not kept_outcome.has_claim(observation) and may_have_collected(observation, attempt):
        return ", and so is the claim that held the results"
    recorded = observation.job.status.progress
    if kept_outcome.holds_nothing(attempt) and recorded and recorded.done + recorded.failed:
        return f", though {recorded.done + recorded.failed} rollouts were recorded: whoever emptied it lost them"
    return ""


def may_have_collected(observation: Observation, attempt: Attempt) -> bool:
    """Whether rollouts may have been paid for. Only what this process saw itself can show that none were:
    an operator that was away does not know."""
    last_seen = last_evaluator(observation, attempt)
    if last_seen is None or _was_running(observation):
        return True
    if podview.restarts(last_seen, CONTAINER_EVALUATE):
        # What its present process says is no word on what the one before it did.
        return True
    said = evaluator_end.last_outcome(last_seen)
    progress = said.progress if said else observation.progress_of(attempt.number)
    if progress is not None:
        return _collected(progress)
    return podview.has_started(last_seen, CONTAINER_EVALUATE)


def _collected(progress: Progress) -> bool:
    return progress.stage is not Stage.STARTING or progress.done + progress.failed > 0


def _was_running(observation: Observation) -> bool:
    conditions = observation.job.status.conditions or ()
    return any(entry.type == ConditionType.RUNNING and entry.status == "True" for entry in conditions)
