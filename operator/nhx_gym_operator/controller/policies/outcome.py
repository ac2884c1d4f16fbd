"""What the evaluator said at its end, and whether that end is final."""

from __future__ import annotations

from typing import Any

from ...api.conditions import RunReason
from ...api.constants import CONTAINER_EVALUATE
from ...api.outcome import OutcomeError, decode_outcome
from ...api.wire import Outcome
from .. import podview

Manifest = dict[str, Any]


def final_outcome(evaluator: Manifest | None) -> Outcome | None:
    """The outcome with which the evaluator ended by itself. None while it runs, when it was killed, and
    when it left none: other containers of the pod have no say."""
    outcome = last_outcome(evaluator)
    if outcome is None or outcome.state == "Running" or outcome.reason == RunReason.EVALUATOR_LOST:
        return None
    return outcome


def last_outcome(evaluator: Manifest | None) -> Outcome | None:
    """The outcome in the ended evaluator's message, final or not."""
    return _decoded(evaluator, CONTAINER_EVALUATE)


def _decoded(pod: Manifest | None, container: str) -> Outcome | None:
    ended = podview.terminated(pod, container) if pod else None
    if ended is None:
        return None
    try:
        return decode_outcome(ended.get("message", ""))
    except OutcomeError:
        return None
