"""A condition as metav1.Condition defines it, of whatever object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .clock import format_time

MESSAGE_LIMIT = 4000
"""Characters of a condition's message: whole sentences of a kubelet fit, a log does not."""
REASON_LIMIT = 1024
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Colours, what else a program's output may do to the terminal in which a message is read, and marks that turn the
direction of text, so that what is read is not what is written."""


def condition(
    before: Mapping[str, Any] | None,
    kind: str,
    status: str,
    reason: str,
    message: str,
    generation: int | None,
    now: datetime,
) -> dict[str, Any]:
    """The condition that follows `before`, the one of this kind that the object has. `status` is "True", "False" or
    "Unknown", and `lastTransitionTime` moves only with it."""
    stays = before is not None and before["status"] == status
    return {
        "type": str(kind),
        "status": status,
        "reason": str(reason)[:REASON_LIMIT],
        "message": _CONTROL.sub("", message)[:MESSAGE_LIMIT],
        "lastTransitionTime": before["lastTransitionTime"] if stays else format_time(now),
        "observedGeneration": generation,
    }
