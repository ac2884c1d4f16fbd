"""Values that every JSON reader on the way reads alike: the command's, the API server's, the operator's, Gym's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from enum import Enum
from typing import Any

API_INTEGERS = range(-(2**63), 2**63)
"""What the API server keeps as an integer; a larger one becomes a float there."""
_MAX_DEPTH = 64
"""Also the operator's own limit for `hydraParams`."""


def plain(value: Any, field: str, integers: range = API_INTEGERS) -> Any:
    """`value` as dict, list, str, int, float, bool or None. A tuple becomes a list, as Hydra reads it too.

    Raises ValueError naming the field within `field` and what stands there, but never the value itself.
    """
    return _plain(value, field, integers, _MAX_DEPTH)


def _plain(value: Any, field: str, integers: range, depth: int) -> Any:
    if depth < 0:
        raise ValueError(f"{field[:80]}… is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, field)
    if isinstance(value, int):
        return _integer(int(value), field, integers)
    if isinstance(value, float):
        return _number(float(value), field)
    if isinstance(value, Mapping):
        return {_key(key, field): _plain(item, f"{field}.{key}", integers, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{field}[{index}]", integers, depth - 1) for index, item in enumerate(value)]
    hint = "; put it in quotes, so that it is text" if isinstance(value, date) else ""
    raise ValueError(f"{field} is a {type(value).__name__}, which has no JSON form{hint}")


def _key(key: Any, field: str) -> str:
    if not isinstance(key, str):
        raise ValueError(
            f"{field} has the key {key!r}, a {type(key).__name__}; JSON's keys are text, so put it in quotes"
        )
    return _text(key, field)


def _text(text: str, field: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{field} holds half of a surrogate pair, which has no JSON form") from None
    return str.__str__(text)


def _integer(number: int, field: str, integers: range) -> int:
    if number not in integers:
        raise ValueError(f"{field} has more than 64 bits, which would not arrive as it is; write it as text")
    return number


def _number(number: float, field: str) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{field} is {number}, which has no JSON form; write it as text")
    return number
