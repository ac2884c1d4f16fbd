"""The status under construction."""

from __future__ import annotations

import copy
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from ..api.conditions import ConditionType
from ..api.job import AgentEvalJob
from ..api.status import JobStatus
from .clock import parse_time
from .conditions import condition


class StatusDraft:
    """Starts as the job's present status; fields are changed in place."""

    def __init__(self, job: AgentEvalJob, now: datetime) -> None:
        self._job = job
        self._now = now
        self._generation = job.metadata.generation
        self.data: dict[str, Any] = copy.deepcopy(job.status.to_dict())

    @property
    def egress_allowed(self) -> list[str]:
        return self._job.spec.egress.allow

    def fitting(self) -> dict[str, Any]:
        """The status as the API server takes it. For one field that it refuses it would refuse the whole, whoever made
        up the numbers in it: such a field stays as it was."""
        try:
            JobStatus.model_validate(self.data)
        except ValidationError as error:
            wrong = {problem["loc"][0] for problem in error.errors(include_url=False, include_input=False)}
            before = self._job.status.to_dict()
            kept = {name: value for name, value in self.data.items() if name not in wrong}
            return kept | {name: before[name] for name in before.keys() & wrong}
        return self.data

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
