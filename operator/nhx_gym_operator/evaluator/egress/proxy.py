"""What may go out, how much of it, and the line that is kept of each request."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from ...api.egress import FIELD, MAX_NAMED, allowed_by, spells_out
from ...api.wire.endpoints import EgressUse
from ...api.wire.plans import EgressPlan
from ..addresses import AddressRefused, look_up, parsed, plain, trouble_in_words
from .forwarding import EgressRefused, asked, client, end_to_end, request_headers
from .tunnel import CHUNK_BYTES, Hello, Incoming, connected

EGRESS_LOG = "egress.jsonl"
AT_ONCE = 64
"""Requests and tunnels of one job."""
IDLE_S = 60.0
"""That a request may go on without a byte."""
LONGEST_S = 3600.0
MAX_BYTES = 16 << 30
"""Both ways, of one attempt of a job."""
MAX_LOG_BYTES = 64 << 20
_LOOKUPS_AT_ONCE = 8

log = logging.getLogger(__name__)


@dataclass
class _Exchange:
    """One request on its way, and what its line of the log will say."""

    request: web.Request
    host: str = ""
    port: int = 0
    url: URL | None = None
    """None for a tunnel."""
    entry: str | None = None
    """Of the job's list, which allows it; None once it is refused."""
    response: web.StreamResponse | None = None
    """Once its head is sent."""
    status: int = 0
    sent: int = 0
    received: int = 0
    why: str = ""
    """It was refused, or ended early."""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    began: float = field(default_factory=time.monotonic)
    timer: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(IDLE_S))

    def line(self) -> dict[str, Any]:
        about = {
            "time": self.at.isoformat(timespec="milliseconds"),
            "method": self.request.method,
            "host": self.host,
            "port": self.port,
            "status": self.status,
            "sent": self.sent,
            "received": self.received,
            "seconds": round(time.monotonic() - self.began, 3),
        }
        return about | ({"why": self.why} if self.why else {})

    def goes_on(self) -> None:
        loop = asyncio.get_running_loop()
        left = LONGEST_S - (time.monotonic() - self.began)
        self.timer.reschedule(loop.time() + min(IDLE_S, left))

    def ended(self, status: int, why: str) -> web.StreamResponse:
        """The end of an exchange that failed. Raises `EgressRefused` if nothing was answered yet."""
        self.why = self.why or why
        if self.response is None:
            self.status = status
            raise EgressRefused(status, self.why)
        # A beginning was passed on, and no clean end may be invented for it.
        self.response.force_close()
        if self.request.transport is not None:
            self.request.transport.abort()
        return self.response


class EgressProxy:
    """Serves what the plan allows. What it counts is of this attempt."""

    def __init__(self, plan: EgressPlan, file: Path) -> None:
        self._plan = plan
        self._file = file
        self._passed_by: Counter[str] = Counter()
        self._open = self._requests = self._refused = self._sent = self._received = self._logged = 0
        # Of its own: a name server that does not answer must not hold up the rest of the evaluator.
        self._lookups = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, thread_name_prefix="egress-lookup")

    def counts(self) -> dict[str, Any]:
        """For the bundle: what was allowed, and how much came of it."""
        whole = self.use().model_copy(update={"passed": dict(self._passed_by.most_common())})
        return {"allow": self._plan.allow} | whole.model_dump()

    def use(self) -> EgressUse:
        """For the job's status: at most `MAX_NAMED` entries, and no word of the sandbox's own."""
        return EgressUse(
            requests=self._requests,
            refused=self._refused,
            sent=self._sent,
            received=self._received,
            passed=dict(self._passed_by.most_common(MAX_NAMED)),
        )

    def count_stranger(self) -> None:
        """A request without the host's token, which is refused. It is no line: with the log full nothing goes out, and
        who may not use the proxy must not end it."""
        self._requests += 1
        self._refused += 1

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Answer a request that `is_forwarded`. Raises `EgressRefused`."""
        exchange = _Exchange(request)
        self._open += 1
        try:
            async with exchange.timer:
                self._admit(exchange)
                addresses = await self._addresses(exchange)
                if exchange.url is None:
                    return await self._tunnel(exchange, addresses)
                return await self._pass_on(exchange, exchange.url, addresses)
        except EgressRefused as refused:
            self._refused += 1
            exchange.entry = None
            return exchange.ended(refused.status, str(refused))
        except TimeoutError:
            return exchange.ended(504, f"no byte passed for {IDLE_S:g} s, or it had been open for {LONGEST_S:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return exchange.ended(502, f"{exchange.host}: {type(error).__name__}: {error}"[:500])
        finally:
            self._open -= 1
            self._note(exchange)

    def _admit(self, exchange: _Exchange) -> None:
        exchange.host, exchange.port, exchange.url = asked(exchange.request)
        if self._logged >= MAX_LOG_BYTES:
            raise EgressRefused(503, f"the log of this job's requests is full ({MAX_LOG_BYTES} bytes)")
        if self._open > AT_ONCE:
            raise EgressRefused(503, f"{AT_ONCE} requests of this job are open, which is as many as there may be")
        self._check_bytes()
        exchange.entry = allowed_by(self._plan.allow, exchange.host, exchange.port)
        if exchange.entry is None:
            allowed = ", ".join(self._plan.allow)
            raise EgressRefused(
                403, f"this job may not reach {exchange.host}:{exchange.port}; its {FIELD} has {allowed}"
            )

    def _check_bytes(self) -> None:
        if self._sent + self._received >= MAX_BYTES:
            raise EgressRefused(403, f"this job has sent and received {MAX_BYTES} bytes, which is all it may")

    def _passed(self, exchange: _Exchange, sent: int = 0, received: int = 0) -> None:
        exchange.sent += sent
        exchange.received += received
        self._sent += sent
        self._received += received
        exchange.goes_on()
        try:
            self._check_bytes()
        except EgressRefused as refused:
            # aiohttp's client has words of its own for an error in what it sends.
            exchange.why = str(refused)
            raise

    async def _addresses(self, exchange: _Exchange) -> list[str]:
        """Where the host is. A private address is right for a host that the list spells out; below a `*.` it would be
        whoever names hosts there, and not the administrator, who opens something of this network."""
        host, loop = exchange.host, asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._lookups, look_up, host)
        except AddressRefused as error:
            raise EgressRefused(403, str(error)) from error
        except OSError as error:
            raise EgressRefused(502, f"{host}: {trouble_in_words(error)}") from error
        private = spells_out(self._plan.allow, host, exchange.port)
        for text in found:
            address = plain(parsed(text))
            if host in self._plan.shut or str(address) in self._plan.shut:
                raise EgressRefused(403, f"{host} is the address {text}, which no sandbox may reach")
            if not private and not address.is_global:
                raise EgressRefused(
                    403, f"{host} is the private address {text}: {FIELD} has to spell such a host out, without `*.`"
                )
        return found

    async def _tunnel(self, exchange: _Exchange, addresses: list[str]) -> web.StreamResponse:
        request = exchange.request
        reader, writer = await connected(exchange.host, addresses, exchange.port)
        try:
            response = web.StreamResponse()
            await response.prepare(request)
            response.force_close()
            exchange.response, exchange.status = response, response.status
            incoming = Incoming(request)
            writer.write(await self._greeting(exchange, incoming.reader))
            ways = [
                asyncio.create_task(self._send(exchange, incoming.reader, writer)),
                asyncio.create_task(self._receive(exchange, reader, response)),
            ]
            try:
                ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ended:
                    way.result()
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            return response
        finally:
            writer.close()

    async def _greeting(self, exchange: _Exchange, client: asyncio.StreamReader) -> bytes:
        """The first bytes of a tunnel, once they say whom they are for. Else a tunnel to one host would reach every
        other one at its address: a content network has many."""
        hello, greeting = Hello(), b""
        while not hello.heard:
            data = await client.read(CHUNK_BYTES)
            if not data or len(greeting) > CHUNK_BYTES:
                raise EgressRefused(403, "no TLS was begun in the tunnel")
            self._passed(exchange, sent=len(data))
            greeting += data
            hello.feed(data)
        if not hello.is_for(exchange.host):
            raise EgressRefused(403, f"a tunnel carries TLS for the host that was asked for; this was {hello.words}")
        return greeting

    async def _send(self, exchange: _Exchange, client: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.drain()
        while data := await client.read(CHUNK_BYTES):
            self._passed(exchange, sent=len(data))
            writer.write(data)
            await writer.drain()

    async def _receive(self, exchange: _Exchange, reader: asyncio.StreamReader, response: web.StreamResponse) -> None:
        while data := await reader.read(CHUNK_BYTES):
            self._passed(exchange, received=len(data))
            await response.write(data)

    async def _pass_on(self, exchange: _Exchange, url: URL, addresses: list[str]) -> web.StreamResponse:
        request = exchange.request
        async with (
            client(addresses) as session,
            session.request(
                request.method,
                url,
                headers=request_headers(request),
                data=self._body(exchange) if request.body_exists else None,
                allow_redirects=False,
            ) as answer,
        ):
            response = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=end_to_end(answer.headers)
            )
            await response.prepare(request)
            exchange.response, exchange.status = response, answer.status
            async for chunk in answer.content.iter_any():
                self._passed(exchange, received=len(chunk))
                await response.write(chunk)
            await response.write_eof()
            return response

    async def _body(self, exchange: _Exchange) -> AsyncIterator[bytes]:
        async for chunk in exchange.request.content.iter_any():
            self._passed(exchange, sent=len(chunk))
            yield chunk

    def _note(self, exchange: _Exchange) -> None:
        self._requests += 1
        if exchange.entry is not None:
            self._passed_by[exchange.entry] += 1
        if self._logged >= MAX_LOG_BYTES:
            return
        line = json.dumps(exchange.line()) + "\n"
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="ascii") as file:
                file.write(line)
            self._logged += len(line)
        except OSError as error:
            log.error("no further request leaves the sandbox, since %s cannot be written: %s", self._file, error)
            self._logged = MAX_LOG_BYTES
