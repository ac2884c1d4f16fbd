"""When a model call is repeated, and after how long: the rules of the openai client."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

INITIAL_DELAY_S = 0.5
MAX_DELAY_S = 8.0
"""`INITIAL_RETRY_DELAY` and `MAX_RETRY_DELAY` of openai-python's `_constants.py`."""

_RETRIED = frozenset({408, 409, 429})


def is_retried(status: int, headers: Mapping[str, str]) -> bool:
    """Whether a refusal may pass with time: 408, 409, 429, 5xx, or what the server itself says in
    `x-should-retry`."""
    wish = headers.get("x-should-retry")
    if wish in ("true", "false"):
        return wish == "true"
    return status in _RETRIED or status >= 500


def delay_before_retry(number: int, headers: Mapping[str, str]) -> float:
    """Seconds before retry `number` (from 0): the server's wish, or a jittered back-off."""
    asked = _asked_delay(headers)
    if asked is not None:
        return asked
    return min(INITIAL_DELAY_S * 2**number, MAX_DELAY_S) * (1 - 0.25 * random.random())


def _asked_delay(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    value = headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
