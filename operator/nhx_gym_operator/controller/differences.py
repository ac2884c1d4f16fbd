"""Objects compared: what one says beyond another."""

from __future__ import annotations

from typing import Any

Manifest = dict[str, Any]


def merge_patch(old: Manifest, new: Manifest) -> Manifest:
    """The JSON merge patch (RFC 7386) from `old` to `new`; empty if they say the same."""
    patch: Manifest = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or value != before:
            patch[key] = value
    return patch


def contains(live: Any, desired: Any) -> bool:
    """Whether `live` says at least what `desired` says: the API server adds defaults of its own."""
    if isinstance(desired, dict):
        return isinstance(live, dict) and all(
            key in live and contains(live[key], value) for key, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(live, list)
            and len(live) == len(desired)
            and all(contains(own, other) for own, other in zip(live, desired, strict=True))
        )
    return live == desired


def equals(live: Any, desired: Any, *, defaulted: frozenset[str]) -> bool:
    """Whether `live` says what `desired` says and no more, but for keys that the API server fills in. An empty list is
    as good as none; an empty object is not: as a selector it means everything."""
    if isinstance(desired, dict):
        if not isinstance(live, dict):
            return False
        beyond = {key for key, value in live.items() if key not in desired and value not in (None, [])}
        return beyond <= defaulted and all(
            equals(live.get(key) or [] if value == [] else live.get(key), value, defaulted=defaulted)
            for key, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(live, list)
            and len(live) == len(desired)
            and all(equals(own, other, defaulted=defaulted) for own, other in zip(live, desired, strict=True))
        )
    return live == desired
