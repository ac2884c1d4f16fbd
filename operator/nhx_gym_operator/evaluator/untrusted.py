"""What a gym host or an environment says, brought to what everything after can hold: numbers, texts and depth.

Gym writes with orjson, which has neither NaN nor integers beyond 64 bits. So an honest result loses nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_NESTING = 128
"""Levels of a value. The SDK's trials, which are pydantic's, take no more than some 250."""
MAX_NUMBER = 1e100
"""Largest reward or aggregate. Squares of such numbers, and sums of squares over any run, are floats still; the SDK's
deviations overflow from some 1e154 on, which would end the scoring of all rollouts."""
MAX_METRICS = 2000
"""Aggregates of one agent. Gym's environments have some tens."""

_AGGREGATE_FIELDS = ("agent_ref", "agent_metrics", "key_metrics", "group_level_metrics")


def well_formed(text: str) -> str:
    """The text with `?` for halves of surrogate pairs, which JSON can spell and UTF-8 has no bytes for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="replace").decode()
    return text


def readable(text: str) -> str:
    """The text as a message may show it: well-formed, and with what a terminal would act upon spelt out (`\\x1b`)."""
    text = well_formed(text).replace("\t", "    ")
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() or character == "\n" else ascii(character)[1:-1]


def strict_json(value: Any, levels: int = MAX_NESTING) -> Any:
    """The value in JSON that every reader takes: null in place of floats that JSON has no word for and of integers that
    are no float, floats in place of other integers beyond 64 bits, well-formed texts. Raises `RecursionError` for one
    nested deeper than `levels`."""
    if levels < 0:
        raise RecursionError
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 64 else _as_float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {well_formed(str(key)): strict_json(item, levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item, levels - 1) for item in value]
    return value


def gym_aggregates(entries: object) -> tuple[list[dict[str, Any]], list[str]]:
    """Gym's own aggregates, an entry per agent, in strict JSON and in numbers that the SDK can square; and what had to
    be left out of them, in words. Raises `ValueError` where they are of another shape."""
    if not isinstance(entries, list):
        raise ValueError("Gym's aggregates are no list")
    kept, left_out = [], []
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("agent_metrics"), Mapping):
            raise ValueError("an entry of Gym's aggregates holds no agent_metrics")
        try:
            clean = {name: strict_json(entry.get(name)) for name in _AGGREGATE_FIELDS}
        except RecursionError as error:
            raise ValueError(f"Gym's aggregates are nested deeper than {MAX_NESTING} levels") from error
        found = clean["agent_metrics"]
        some = dict(list(found.items())[:MAX_METRICS])
        clean["agent_metrics"] = {readable(name): value for name, value in some.items() if not _is_too_large(value)}
        if more := len(found) - len(some):
            left_out.append(f"{more} aggregates beyond the first {MAX_METRICS}")
        if large := len(some) - len(clean["agent_metrics"]):
            left_out.append(f"{large} aggregates further from 0 than {MAX_NUMBER:g}")
        kept.append(clean)
    return kept, left_out


def _is_too_large(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) > MAX_NUMBER


def _as_float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None
