"""JSON from the API server, however deep.

The API server stores ten thousand levels, Python's reader raises RecursionError at a thousand or so, and
hydraParams take any shape. One such job would end every watch and list that it is in, and the operator with
them. kopf, which copies what it is given, ends at fewer. So what no reader follows is cut below `KEPT_LEVELS`, which
leaves more than validation lets pass: in the text where that cannot be read, else in the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

KEPT_LEVELS = 256
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


def loads(data: bytes | str, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """`json.loads`, with null in place of what lies deeper than `KEPT_LEVELS` if it is too deep to be read."""
    try:
        return json.loads(data, object_hook=object_hook)
    except RecursionError:
        return json.loads(_cut_text(data.encode() if isinstance(data, str) else data), object_hook=object_hook)


def cut_levels(value: dict[str, Any]) -> None:
    """Empties each object and list below the `KEPT_LEVELS` of a value that was read."""
    level: list[Any] = [value]
    for _ in range(KEPT_LEVELS):
        inner = [each for outer in level for each in (outer.values() if isinstance(outer, dict) else outer)]
        level = [each for each in inner if isinstance(each, dict | list)]
    for each in level:
        each.clear()


def _cut_text(data: bytes) -> bytes:
    kept, start, level = [], 0, 0
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in (b"[", b"{"):
            level += 1
            if level == KEPT_LEVELS + 1:
                kept += [data[start : token.start()], b"null"]
        elif mark in (b"]", b"}"):
            if level == KEPT_LEVELS + 1:
                start = token.end()
            level -= 1
    return b"".join([*kept, data[start:]])
