"""Tokens of a job, derived from the operator's one key: it stores none and reads none back."""

from __future__ import annotations

import hashlib
import hmac

_NAME_DIGITS = 10


def derive(key: bytes, *parts: str | int) -> str:
    """Hex HMAC-SHA256 of `parts` joined by `/`. No part may hold a `/`: UIDs, roles and ordinals don't."""
    return hmac.new(key, "/".join(str(part) for part in parts).encode(), hashlib.sha256).hexdigest()


def progress_token(key: bytes, uid: str) -> str:
    """What the operator shows to read a job's `/progress`."""
    return derive(key, uid, "progress", 0)


def host_token(key: bytes, uid: str, ordinal: int) -> str:
    """What one gym host shows to its evaluator, and the evaluator to it."""
    return derive(key, uid, "host", ordinal)


def name_suffix(key: bytes, uid: str, role: str, ordinal: int) -> str:
    """Ends a Secret's name, so that nobody without the key can plant one there beforehand."""
    return derive(key, uid, f"secret-{role}", ordinal)[:_NAME_DIGITS]
