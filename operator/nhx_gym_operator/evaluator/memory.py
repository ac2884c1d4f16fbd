"""What of the evaluator's memory others may take, by what they send: room that all share, and values in a text.

A text has a limit in bytes and one in JSON values, since a short text can hold many. What finds no room waits, unread,
and whoever sends it waits too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

SMALL_BYTES = 256 * 1024
"""What needs no room, and waits for none: of as many calls as run at once it is little."""
_CHUNK = 1 << 20
_NO_MARKS = bytes(set(range(256)) - set(b'"[{,:'))
"""All that neither is a mark nor tells where a string is."""


class Room:
    """Memory that is shared by those who take of it. First come, first served, so that none waits for ever."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._queue = asyncio.Lock()
        self._given_back = asyncio.Event()

    @contextlib.asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Wait for that much. What takes more than there is gets all of it."""
        size = min(size, self._size)
        async with self._queue:
            while self._free < size:
                self._given_back.clear()
                await self._given_back.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._given_back.set()


def json_values(text: bytes | bytearray, most: int) -> int:
    """How many values a JSON text holds, without parsing it: its `[`, `{`, `,` and `:` outside of strings. Once there
    are more than `most`, it counts no further. A text that is no JSON has some number too.

    Of 30 MiB: a tenth of a second, a third of one where all of it is escapes; and a few MiB of memory.
    """
    found = quotes = at = 0
    view = memoryview(text)
    while at < len(text) and max(found, quotes // 2) <= most:
        chunk = view[at : at + _CHUNK].tobytes()
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            # An escape is not cut in two.
            chunk += view[at + _CHUNK : at + _CHUNK + 1]
        at += len(chunk)
        # Once these are out, every quote begins or ends a string.
        marks = chunk.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
        parts = marks.split(b'"')
        found += len(b"".join(parts[quotes % 2 :: 2]))
        quotes += len(parts) - 1
    # In JSON there is a mark between any two strings.
    return max(found, quotes // 2)
