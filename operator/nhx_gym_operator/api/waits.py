"""What a message about a wait ends with, whoever writes it, and the message without that."""

from __future__ import annotations

_UNTIL = "; it waits until "


def until(end: str, bound: str) -> str:
    """When the wait is over, as a status shows times, and which field or setting says so."""
    return f"{_UNTIL}{end} at most ({bound})"


def without_until(message: str) -> str:
    """What is waited for."""
    return message.rpartition(_UNTIL)[0] or message
