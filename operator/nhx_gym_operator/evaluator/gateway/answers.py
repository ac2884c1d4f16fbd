"""How a model's answer is passed on: whole, or as it streams; and what is read of it meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp
from aiohttp import web

from ...api.wire.reports import FailureClass
from ..memory import SMALL_BYTES, Room, json_values
from ..metering import End, EventStream, failed_response, usage_of
from .refusals import GIVEN_UP, MayPass, Refused, failed_answer, final, unforeseen, words_of
from .under_way import Asked

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ANSWER_VALUES = 2_000_000
ANSWER_ROOM_BYTES = 3 * MAX_ANSWER_BYTES
"""For whole answers, but for small ones. Each is held until its caller has taken it."""
HANDOVER_SECONDS = 60.0
"""For a caller to take a whole answer."""
_LOOKED_AT_BYTES = 64 * 1024
"""Of an answer that is no JSON, for the words that are shown."""

log = logging.getLogger(__name__)


class Answers:
    """Whole ones, and the room that they share."""

    def __init__(self) -> None:
        self._room = Room(ANSWER_ROOM_BYTES)

    async def _whole(self, asked: Asked, answer: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise _too_large(f"{MAX_ANSWER_BYTES} bytes")
            # Once, though an answer before it was none: whoever holds room must not wait for more.
            if size > SMALL_BYTES and not asked.has_answer_room:
                await asked.held.enter_async_context(self._room.taken(MAX_ANSWER_BYTES))
                asked.has_answer_room = True
            parts.append(part)
        body = b"".join(parts)
        if size > MAX_ANSWER_VALUES and json_values(body, MAX_ANSWER_VALUES) > MAX_ANSWER_VALUES:
            raise _too_large(f"{MAX_ANSWER_VALUES} JSON values")
        return body

    async def take(self, asked: Asked, answer: aiohttp.ClientResponse, key: str | None) -> web.Response:
        """A whole answer, for `hand_over`. Raises `Refused` or `MayPass` if it is none."""
        body = await self._whole(asked, answer)
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError) as error:
            shown = words_of(body[:_LOOKED_AT_BYTES].decode("utf-8", errors="replace"), key)
            raise MayPass(f"the model server's answer is not JSON: {shown}") from error
        failed = failed_response(parsed)
        if failed is not None:
            raise failed_answer(*failed, key)
        asked.cost.tokens = usage_of(parsed)
        asked.answered(parsed)
        content_type = answer.headers.get("Content-Type", "application/json")
        return web.Response(status=answer.status, body=body, headers={"Content-Type": content_type})


async def pass_stream(
    asked: Asked, answer: aiohttp.ClientResponse, first: bytes, key: str | None
) -> web.StreamResponse:
    """An answer that comes in events, as they come; `first` is the first of its bytes, from which on nothing may be
    repeated. Keeps the call's deadline itself."""
    request = asked.request
    response = web.StreamResponse(
        status=answer.status,
        headers={"Content-Type": answer.headers["Content-Type"], "Cache-Control": "no-cache"},
    )
    events = EventStream()
    broken: Refused | None = None
    try:
        async with asyncio.timeout_at(asked.deadline):
            await response.prepare(request)
            size, chunk = 0, first
            while chunk:
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise _too_large(f"{MAX_ANSWER_BYTES} bytes")
                events.feed(chunk)
                await response.write(chunk)
                chunk = await answer.content.readany()
    except Refused as error:
        broken = error
    except TimeoutError:
        words = f"the model server's stream did not end within {asked.model.endpoint.limit}"
        broken = Refused(GIVEN_UP, FailureClass.TIMEOUT, words)
    except asyncio.CancelledError:
        asked.left(events)
        raise
    except (aiohttp.ClientError, OSError) as error:
        if request.transport is None or request.transport.is_closing():
            asked.left(events)
            return response
        words = f"the model server's stream broke: {type(error).__name__}"
        broken = Refused(GIVEN_UP, FailureClass.TRANSIENT, words)
    except Exception as error:
        broken = unforeseen(error)
    finally:
        events.finish()
        asked.cost.tokens, asked.cost.in_part = events.tokens, True
    if broken is None and events.failed is not None:
        # The server said so itself, in an event that has been passed on: such a stream ends cleanly.
        asked.cost.end = End.FAILED
        asked.given_up(final(failed_answer(*events.failed, key)))
        return response
    if broken is None and not events.complete:
        words = "the model server's stream ended without finish reason or [DONE]"
        broken = Refused(GIVEN_UP, FailureClass.TRANSIENT, words)
    if broken is None:
        asked.answered(events.answer)
        return response
    # Bytes were passed on, so this cannot be repeated; and no clean end may be invented for it.
    asked.cost.end = End.FAILED
    asked.given_up(broken)
    response.force_close()
    if request.transport is not None:
        request.transport.abort()
    return response


async def hand_over(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """Written out while its call has its turn still: of a caller that takes no answers, few are held."""
    try:
        async with asyncio.timeout(HANDOVER_SECONDS):
            await answer.prepare(request)
            await answer.write_eof()
    except TimeoutError:
        log.warning("a caller did not take its answer within %g s", HANDOVER_SECONDS)
        if request.transport is not None:
            request.transport.abort()
    except OSError:
        log.debug("a caller went away while it was given its answer")
    return answer


def _too_large(most: str) -> Refused:
    return Refused(GIVEN_UP, FailureClass.MODEL, f"the model server's answer exceeds {most}")
