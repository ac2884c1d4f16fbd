"""What a gym host answers, within what the evaluator's memory holds, whatever the host sends.

One answer has a limit in bytes and one in JSON values. All answers in flight share room for reading and room for what
they become: parsed, copied into strict JSON, written to the journal. An answer that finds no room waits, unread, and
its host with it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import aiohttp
from sandboxed_gym.host.models import render_host_error

from ...api.wire.endpoints import HOST_ANSWER_LIMIT_BYTES
from ..memory import Room, json_values
from ..untrusted import strict_json

READ_ROOM_BYTES = 4 * HOST_ANSWER_LIMIT_BYTES
"""For answers that are being read. Each takes as much of it as it may have bytes: its size is known at its end."""
TAKEN_ROOM_BYTES = 768 << 20
"""For answers that were read, until they are recorded. With `READ_ROOM_BYTES` it leaves the gateway and the interpreter
half of the 2 GiB that the pod has by default."""
_BYTE_TAKES = 10
"""Bytes of memory for one byte of an answer. Of texts: up to four in a string that has an emoji, and twice up to three
in the journal's line, where each character beyond ASCII is spelt out."""
_VALUE_TAKES = 240
"""And for one JSON value beside its text: a list in a list has 104 bytes, a number 32 and its place, and all twice."""
_SHOWN = 500
_NOT_SERVING = frozenset({502, 503, 504})


class HostError(RuntimeError):
    """The host answered with an error of its own, or with what is none of the answers it may give."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class HostGone(ConnectionError):
    """The connection ended without an answer."""


class Limit(NamedTuple):
    """The largest answer that is taken."""

    size: int
    values: int


ROLLOUT = Limit(HOST_ANSWER_LIMIT_BYTES, 1_000_000)
"""Of one rollout, with its model calls. A host leaves model calls out rather than exceed it."""
AGGREGATES = Limit(2 * HOST_ANSWER_LIMIT_BYTES, 4_000_000)
"""Of Gym's aggregates, which have an entry for each task. Nothing else is held when they come."""


class Answers:
    """Takes in answers. Their room is held until the stack that each is given is closed."""

    def __init__(self, read_room: int = READ_ROOM_BYTES, taken_room: int = TAKEN_ROOM_BYTES) -> None:
        self._reading = Room(read_room)
        self._held = Room(taken_room)

    async def take(
        self, answer: aiohttp.ClientResponse, limit: Limit, held: contextlib.AsyncExitStack
    ) -> Mapping[str, Any]:
        """The JSON object that was answered. Raises `HostError`, `HostGone`."""
        chunks = answer.content.iter_any()
        first = await _first_words(chunks)
        async with self._reading.taken(limit.size):
            body = await _read(first, chunks, limit)
            values = json_values(body, limit.values)
            if values > limit.values:
                words = f"the gym host's answer holds more than {limit.values} JSON values, the most that are taken"
                raise HostError("payload_too_large", words)
            async with contextlib.AsyncExitStack() as room:
                await room.enter_async_context(self._held.taken(len(body) * _BYTE_TAKES + values * _VALUE_TAKES))
                envelope = _envelope(answer.status, body)
                # Of an answer that is none nothing is held: whoever holds room must not wait for more.
                await held.enter_async_context(room.pop_all())
            return envelope


async def _first_words(chunks: AsyncIterator[bytes]) -> bytes:
    """The first chunk that is no heartbeat: until then an answer needs no room."""
    async for chunk in chunks:
        if chunk.strip():
            return chunk
    return b""


async def _read(first: bytes, chunks: AsyncIterator[bytes], limit: Limit) -> bytearray:
    body, chunk = bytearray(), first
    while chunk:
        if len(body) + len(chunk) > limit.size:
            words = f"the gym host's answer is larger than {limit.size / (1 << 20):g} MiB, the most that is taken"
            raise HostError("payload_too_large", words)
        body += chunk
        chunk = await anext(chunks, b"")
    return body


def _envelope(status: int, body: bytearray) -> Mapping[str, Any]:
    if status in _NOT_SERVING:
        raise HostGone(f"HTTP {status}: {_beginning(body)}")
    if not body:
        if status < 400:
            raise HostGone("the answer broke off before its result")
        raise HostError("internal", f"the gym host answered HTTP {status} without a word")
    try:
        envelope = json.loads(body)
        told = strict_json(envelope.get("error")) if isinstance(envelope, Mapping) else "not a JSON object"
    except json.JSONDecodeError as error:
        if status < 400:
            raise HostGone(f"the answer broke off: {error}") from error
        raise HostError("internal", f"the gym host answered HTTP {status}: {_beginning(body)}") from error
    except RecursionError as error:
        raise HostError("internal", f"the gym host's answer, HTTP {status}, is nested too deeply") from error
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
        raise HostError("internal", f"the gym host's answer, HTTP {status}, cannot be read: {error}") from error
    if told is not None or status >= 400:
        code = told.get("code") if isinstance(told, Mapping) else None
        raise HostError(str(code or "internal")[:_SHOWN], f"gym host, HTTP {status}: {render_host_error(told)}")
    return envelope


def _beginning(body: bytearray) -> str:
    return bytes(body[:_SHOWN]).decode(errors="replace")
