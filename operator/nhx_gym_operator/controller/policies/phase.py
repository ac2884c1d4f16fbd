"""The phase: one word for people, computed here and nowhere else, and never read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...api.conditions import ConditionType, PodReason, RunReason, StagedReason
from ...api.constants import Phase

_NO_PODS = {PodReason.POD_REFUSED, PodReason.CHILD_NOT_OURS}


def phase(conditions: Sequence[Mapping[str, Any]]) -> Phase:
    """Pending until pods exist, Staging while the environment is staged, Starting until collection
    begins, Running until the end; Suspended while `spec.suspend` keeps the job without pods."""
    found = {entry["type"]: entry for entry in conditions}

    def is_true(kind: ConditionType) -> bool:
        return kind in found and found[kind]["status"] == "True"

    running = found.get(ConditionType.RUNNING)
    staged = found.get(ConditionType.STAGED)
    if is_true(ConditionType.FAILED):
        return Phase.CANCELLED if found[ConditionType.FAILED]["reason"] == RunReason.CANCELLED else Phase.FAILED
    if is_true(ConditionType.COMPLETE):
        return Phase.SUCCEEDED
    if is_true(ConditionType.SUSPENDED):
        return Phase.SUSPENDED
    if is_true(ConditionType.RUNNING):
        return Phase.RUNNING
    if not is_true(ConditionType.ACCEPTED) or running is None or running["reason"] in _NO_PODS:
        return Phase.PENDING
    if staged is not None and staged["reason"] == StagedReason.STAGING:
        return Phase.STAGING
    return Phase.STARTING
