"""How a caller's request is taken in: how much of it, and how long that may take."""

from __future__ import annotations

import asyncio

from aiohttp import web

from ...api.wire.reports import FailureClass
from ..memory import SMALL_BYTES, Room, json_values
from .refusals import GIVEN_UP, Refused
from .under_way import Asked

MAX_REQUEST_BYTES = 32 * 1024 * 1024
MAX_REQUEST_VALUES = 1_000_000
REQUEST_ROOM_BYTES = 6 * MAX_REQUEST_BYTES
"""For the requests of all calls that are under way, but for small ones. Each is held until its call has ended: it may
have to be sent again. While one is sent it takes as much again. So it is a fifth of the 2 GiB that an evaluator has by
default; answers of hosts take less than half (`collect/answers.py`). What finds no room waits: a 429 Gym would repeat
for ever."""
REQUEST_SECONDS = 60.0
"""For a request to arrive whole, once its turn has come; for a large one, once it has room."""


class Requests:
    """The room that those which are under way share."""

    def __init__(self) -> None:
        self._room = Room(REQUEST_ROOM_BYTES)

    async def body(self, asked: Asked) -> bytes:
        """Of one, whole. Raises `Refused` if it is too large or too slow."""
        content = asked.request.content
        parts: list[bytes] = []
        size, has_room, clock = 0, False, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(REQUEST_SECONDS) as timer:
                while part := await content.readany():
                    size += len(part)
                    if size > MAX_REQUEST_BYTES:
                        raise _too_large(f"{MAX_REQUEST_BYTES} bytes")
                    if size > SMALL_BYTES and not has_room:
                        timer.reschedule(None)
                        await asked.held.enter_async_context(self._room.taken(_room_for(asked.request)))
                        timer.reschedule(clock() + REQUEST_SECONDS)
                        has_room = True
                    parts.append(part)
        except TimeoutError as error:
            words = f"the request did not arrive within {REQUEST_SECONDS:g} s"
            raise Refused(GIVEN_UP, FailureClass.ENVIRONMENT, words, "request_too_slow") from error
        body = b"".join(parts)
        # Parsing it would take what they take, and the loop's time.
        if size > MAX_REQUEST_VALUES and json_values(body, MAX_REQUEST_VALUES) > MAX_REQUEST_VALUES:
            raise _too_large(f"{MAX_REQUEST_VALUES} JSON values")
        return body


def _room_for(request: web.Request) -> int:
    """Bytes that its body may have. One without a length may have any; so may a packed one, which aiohttp unpacks."""
    length = request.content_length
    if length is None or "Content-Encoding" in request.headers:
        return MAX_REQUEST_BYTES
    return min(length, MAX_REQUEST_BYTES)


def _too_large(most: str) -> Refused:
    return Refused(413, FailureClass.ENVIRONMENT, f"a request has at most {most}", "request_too_large")
