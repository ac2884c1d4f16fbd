"""The status under construction."""

from __future__ import annotations

import copy
from datetime import datetime
from enum import StrEnum
from typing import Any

from ..api.conditions import ConditionType
from ..api.job import AgentEvalJob
from .clock import parse_time
from .conditions import condition


class StatusDraft:
    """Starts as the job's present status; fields are changed in place."""

    def __init__(self, job: AgentEvalJob, now: datetime) -> None:
        self._now = now
        self._generation = job.metadata.generation
        self.data: dict[str, Any] = copy.deepcopy(job.status.to_dict())

    def condition(self, kind: ConditionType) -> dict[str, Any] | None:
        for entry in self.data.get("conditions", ()):
            if entry["type"] == kind:
                return entry
        return None

    def drop(self, *kinds: ConditionType) -> None:
        """Takes conditions out that are about nothing any more."""
        if "conditions" in self.data:
            self.data["conditions"] = [entry for entry in self.data["conditions"] if entry["type"] not in kinds]

    def is_true(self, kind: ConditionType) -> bool:
        entry = self.condition(kind)
        return entry is not None and entry["status"] == "True"

    def since(self, kind: ConditionType) -> datetime:
        """When the condition last changed; now, if there is none yet."""
        entry = self.condition(kind)
        return parse_time(entry["lastTransitionTime"]) if entry else self._now

    def set(self, kind: ConditionType, holds: bool, reason: StrEnum | str, message: str) -> None:
        before = self.condition(kind)
        after = condition(before, kind, "True" if holds else "False", reason, message, self._generation, self._now)
        if before is None:
            self.data.setdefault("conditions", []).append(after)
        else:
            before.update(after)
