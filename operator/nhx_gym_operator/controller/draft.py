"""The status under construction: conditions that know when they changed."""

from __future__ import annotations

import copy
import re
from datetime import datetime
from enum import StrEnum
from typing import Any

from ..api.conditions import ConditionType
from ..api.job import AgentEvalJob
from .clock import format_time, parse_time

MESSAGE_LIMIT = 4000
"""Characters of a condition's message: whole sentences of a kubelet fit, a log does not."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Colours, and what else a program's output may do to the terminal in which a message is read."""


class StatusDraft:
    """Starts as the job's present status; fields are changed in place. `lastTransitionTime` moves only
    with a condition's status, as metav1.Condition says."""

    def __init__(self, job: AgentEvalJob, now: datetime) -> None:
        self._now = now
        self._generation = job.metadata.generation
        self.data: dict[str, Any] = copy.deepcopy(job.status.to_dict())

    def condition(self, kind: ConditionType) -> dict[str, Any] | None:
        for entry in self.data.get("conditions", ()):
            if entry["type"] == kind:
                return entry
        return None

    def is_true(self, kind: ConditionType) -> bool:
        entry = self.condition(kind)
        return entry is not None and entry["status"] == "True"

    def since(self, kind: ConditionType) -> datetime:
        """When the condition last changed; now, if there is none yet."""
        entry = self.condition(kind)
        return parse_time(entry["lastTransitionTime"]) if entry else self._now

    def set(self, kind: ConditionType, holds: bool, reason: StrEnum | str, message: str) -> None:
        entry = self.condition(kind)
        status = "True" if holds else "False"
        if entry is None:
            entry = {"type": kind.value}
            self.data.setdefault("conditions", []).append(entry)
        if entry.get("status") != status:
            entry["lastTransitionTime"] = format_time(self._now)
        entry["status"] = status
        entry["reason"] = str(reason)
        entry["message"] = _CONTROL.sub("", message)[:MESSAGE_LIMIT]
        entry["observedGeneration"] = self._generation
