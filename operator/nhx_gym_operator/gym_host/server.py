"""The gym host's one open port: the stock runtime's protocol, with a token and a backlog.

Like the stock server, `/rollouts/run` answers 200 at once and sends whitespace while the rollouts run,
so that no hop takes a long one for a dead connection; what fails from then on travels in the body as
`{"error": {"code", "message"}}`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import web

from ..api.wire.endpoints import HOST_AGGREGATE_PATH, HOST_HEALTH_PATH, HOST_ROLLOUTS_PATH, HOST_SHUTDOWN_PATH
from ..in_pods.tokens import is_same

BACKLOG = 1024
"""An evaluator opens one connection per concurrent rollout, all at once. The stock server's 5 resets them."""
_CLOSE_S = 2.0
"""What open connections get at the end."""
ENDING_NOTICE_S = 1.0
"""How soon a host knows that it is ending: by a signal, or since a server of Gym is gone."""
MAX_REQUEST_BYTES = 256 << 20
"""The stock runtime's limit."""


class Rollouts(Protocol):
    """What the server needs of a running Gym (`gym_host.gym.Gym`)."""

    rollout_deadline_s: float
    heartbeat_s: float
    max_response_bytes: int

    def submit(self, examples: list[dict[str, Any]]) -> concurrent.futures.Future[list[dict[str, Any]]]: ...
    def aggregate(self, rows: list[dict[str, Any]]) -> concurrent.futures.Future[dict[str, Any]]: ...


class HostServer:
    """Serves from the start; answers 503 on everything but `/shutdown` until `gym` is set."""

    def __init__(self, token: str, *, on_shutdown: Callable[[], None], mask: Callable[[str], str] = str) -> None:
        self.gym: Rollouts | None = None
        self.failure: str | None = None
        self.ending = asyncio.Event()
        self._authorization = f"Bearer {token}"
        self._on_shutdown = on_shutdown
        self._mask = mask
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._authorize], client_max_size=MAX_REQUEST_BYTES)
        app.router.add_get(HOST_HEALTH_PATH, self._health)
        app.router.add_post(HOST_ROLLOUTS_PATH, self._run_rollouts)
        app.router.add_post(HOST_AGGREGATE_PATH, self._aggregate)
        app.router.add_post(HOST_SHUTDOWN_PATH, self._shutdown)
        return app

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which differs from `port` only when that is 0."""
        # A caller that is gone must not leave its rollouts running: its handler is cancelled.
        self._runner = web.AppRunner(
            self.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSE_S
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=BACKLOG)
        await site.start()
        return self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _authorize(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if request.path != HOST_HEALTH_PATH and not is_same(given, self._authorization):
            return _error(401, "unauthorized", "this host serves its own job's evaluator only")
        return await handler(request)

    async def _health(self, _request: web.Request) -> web.Response:
        if self.failure is not None:
            return web.json_response({"status": "failed", **_envelope("bootstrap_failed", self.failure)}, status=503)
        if self.gym is None:
            return web.json_response({"status": "starting"}, status=503)
        return web.json_response({"status": "ready"})

    async def _run_rollouts(self, request: web.Request) -> web.StreamResponse:
        gym, examples, refusal = await self._accept(request, "examples")
        if refusal is not None or gym is None:
            return refusal or self._not_ready()
        started = time.monotonic()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        work = asyncio.wrap_future(gym.submit(examples))
        try:
            await response.prepare(request)
            await response.write(b" ")
            while not work.done():
                left = started + gym.rollout_deadline_s - time.monotonic()
                if left <= 0:
                    break
                await asyncio.wait({work}, timeout=min(gym.heartbeat_s, left))
                if not work.done():
                    await response.write(b" ")
            if work.done() and not work.cancelled() and work.exception() and await self._is_ending():
                # Gym was taken down under the rollout. That is no result of it: the evaluator sends it again.
                raise ConnectionResetError("the host is ending")
            await response.write(await self._result(work, gym))
            await response.write_eof()
        finally:
            work.cancel()
        return response

    async def _is_ending(self) -> bool:
        """Whether the host ends, which the failed rollout may be the first to notice."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_NOTICE_S):
                await self.ending.wait()
        return self.ending.is_set()

    async def _result(self, work: asyncio.Future[list[dict[str, Any]]], gym: Rollouts) -> bytes:
        if not work.done():
            return self._failure(
                "deadline_exceeded",
                f"rollout exceeded the host deadline of {gym.rollout_deadline_s:g} s and was abandoned",
            )
        try:
            body = await asyncio.to_thread(_encode, {"results": work.result()})
        except asyncio.CancelledError:
            raise
        except Exception as error:
            return self._failure("internal", _described(error))
        if len(body) > gym.max_response_bytes:
            return self._failure(
                "payload_too_large", f"the results take {len(body)} bytes; at most {gym.max_response_bytes} are sent"
            )
        return body

    async def _aggregate(self, request: web.Request) -> web.StreamResponse:
        gym, rows, refusal = await self._accept(request, "verify_responses")
        if refusal is not None or gym is None:
            return refusal or self._not_ready()
        try:
            async with asyncio.timeout(gym.rollout_deadline_s):
                metrics = await asyncio.wrap_future(gym.aggregate(rows))
        except TimeoutError:
            message = f"Gym did not aggregate {len(rows)} rows within {gym.rollout_deadline_s:g} s"
            return _error(504, "deadline_exceeded", message)
        except Exception as error:
            return _error(502, "internal", self._mask(_described(error)))
        return web.json_response(metrics)

    async def _shutdown(self, _request: web.Request) -> web.Response:
        self._on_shutdown()
        return web.json_response({"status": "stopping"})

    async def _accept(
        self, request: web.Request, field: str
    ) -> tuple[Rollouts | None, list[dict[str, Any]], web.Response | None]:
        if self.gym is None or self.ending.is_set():
            return None, [], self._not_ready()
        try:
            body = json.loads(await request.read() or b"{}")
        except ValueError as error:
            return None, [], _error(400, "internal", f"the request body is not JSON: {error}")
        rows = body.get(field) if isinstance(body, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return None, [], _error(400, "internal", f"{field} must be a list of objects")
        return self.gym, rows, None

    def _not_ready(self) -> web.Response:
        return _error(503, "bootstrap_failed", self.failure or "Gym is not ready yet")

    def _failure(self, code: str, message: str) -> bytes:
        print(f"gym-host: rollouts/run failed: {message}", flush=True)
        return json.dumps(_envelope(code, self._mask(message))).encode()


def _encode(envelope: dict[str, Any]) -> bytes:
    try:
        return json.dumps(envelope).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"rollout results are not JSON-serializable: {error}") from error


def _described(error: BaseException) -> str:
    """Type and text of an error, and what a server of Gym answered, if it was one."""
    message = f"{type(error).__name__}: {error}"
    content = getattr(error, "response_content", None)
    if isinstance(content, bytes) and content:
        message += f"\n{content[:4000].decode(errors='replace')}"
    return message


def _envelope(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response(_envelope(code, message), status=status)
