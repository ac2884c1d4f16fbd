"""Gym's configuration as nested dicts, whoever composes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def nested(params: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys opened up: `{"a.b": 1}` is `{"a": {"b": 1}}`, as `++a.b=1` is to Gym's command line."""
    result: dict[str, Any] = {}
    for key, value in params.items():
        leaf: Any = nested(value) if isinstance(value, Mapping) else value
        for part in reversed(key.split(".")):
            leaf = {part: leaf}
        result = deep_merge(result, leaf)
    return result


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`: dicts merge, everything else (lists too) is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = deep_merge(below, value) if both else value
    return merged
