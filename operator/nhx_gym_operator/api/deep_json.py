"""JSON from the API server, however deep.

The API server stores ten thousand levels, Python's reader raises RecursionError at a thousand or so, and
hydraParams take any shape. One such job would end every watch and list that it is in, and the operator with
them. So what no reader follows is cut below `KEPT_LEVELS`, which leaves more than validation lets pass.
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
        return json.loads(_cut(data.encode() if isinstance(data, str) else data), object_hook=object_hook)


def _cut(data: bytes) -> bytes:
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
