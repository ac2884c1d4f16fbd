"""A proxy before the real API server, which has the faults that a test switches on. It counts what is asked of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

_HOP_BY_HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "content-encoding"}


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    watches: bool

    @property
    def is_write(self) -> bool:
        return self.method != "GET"


@dataclass(frozen=True)
class Answer:
    """What is answered in the API server's place."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Faults:
    """Switched by the test, read by the proxy's thread."""

    away: bool = False
    """Connections are reset, those of watches too."""
    seconds: float = 0.0
    """By which each request but a watch is late."""
    answer: Callable[[Asked], Answer | None] = lambda _: None
    expired: bool = False
    """Each watch ends at once with "410 Gone", as one whose version is compacted away."""


class FaultyApi(threading.Thread):
    """With a loop of its own, since tests and operators block theirs now and then."""

    def __init__(self, upstream: str) -> None:
        super().__init__(name="faulty API server", daemon=True)
        self._upstream = upstream
        self._watches: set[asyncio.Transport] = set()
        self._made, self._ended = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.faults = Faults()
        self.asked: list[Asked] = []
        self.url = ""

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        (address, port, *_) = runner.addresses[0]
        self.url = f"http://{address}:{port}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self._session:
            self._made.set()
            await self._ended.wait()
            await runner.cleanup()

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self.join(10)

    def wait_until_made(self) -> None:
        assert self._made.wait(10)

    def drop_watches(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._abort_watches)

    def go_away(self) -> None:
        self.faults.away = True
        self.drop_watches()

    def come_back(self) -> None:
        self.faults.away = False

    def _abort_watches(self) -> None:
        for transport in self._watches:
            transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(request.method, request.path, request.query.get("watch") == "true")
        self.asked.append(asked)
        if self.faults.away and request.transport is not None:
            request.transport.abort()
            return web.Response(status=503)
        if not asked.watches:
            await asyncio.sleep(self.faults.seconds)
        answer = self.faults.answer(asked)
        if answer is not None:
            return _said(answer)
        if asked.watches and self.faults.expired:
            return web.json_response({"type": "ERROR", "object": _status(410, "Expired")})
        return await self._forward(request, asked)

    async def _forward(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        url = self._upstream + request.raw_path
        async with self._session.request(request.method, url, headers=headers, data=body or None, ssl=False) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
            )
            await response.prepare(request)
            transport = request.transport
            if asked.watches and transport is not None:
                self._watches.add(transport)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            except ConnectionError:
                pass  # Dropped by the test, or the operator has stopped.
            finally:
                self._watches.discard(transport)  # type: ignore[arg-type]
            return response


def _status(code: int, reason: str) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": "a fault of the test's",
    }


def _said(answer: Answer) -> web.Response:
    return web.json_response(_status(answer.status, answer.reason), status=answer.status, headers=answer.headers)


@contextmanager
def faulty_api(kubeconfig: Path, folder: Path) -> Iterator[tuple[FaultyApi, Path]]:
    """The proxy, and a kubeconfig like the given one, by way of it."""
    content = yaml.safe_load(kubeconfig.read_text())
    cluster = content["clusters"][0]["cluster"]
    proxy = FaultyApi(cluster["server"])
    proxy.start()
    proxy.wait_until_made()
    cluster["server"] = proxy.url
    path = folder / "faulty.kubeconfig"
    path.write_text(yaml.safe_dump(content))
    try:
        yield proxy, path
    finally:
        proxy.stop()
