"""The host's side of the evaluator's API: registration and the staged environment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import aiohttp

from ..api.tree import MAX_TAR_BYTES
from ..api.wire.endpoints import (
    ENVIRONMENT_DIGEST_HEADER,
    ENVIRONMENT_PATH,
    HOST_LOG_PATH,
    HOSTS_PATH,
    KILLED_HEADER,
    HostRegistration,
)

DEADLINE_S = 120.0
"""The evaluator answered the gate a moment ago; longer than its restart or a node's hiccup is for ever."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_REQUEST_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20


class EvaluatorError(RuntimeError):
    """The evaluator refused, or could not be reached in time."""


class _RetryableError(Exception):
    pass


class EvaluatorClient:
    """Calls with this host's token; each is retried with back-off until its deadline."""

    def __init__(self, url: str, token: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._deadline_s = deadline_s

    async def register(self, registration: HostRegistration, *, deadline_s: float | None = None) -> None:
        """Tell the evaluator this host's state. Raises `EvaluatorError`."""

        async def call(session: aiohttp.ClientSession) -> None:
            async with session.post(self._url + HOSTS_PATH, json=registration.model_dump(mode="json")) as response:
                await _require_success(response)

        await self._retry("registration", call, deadline_s or self._deadline_s)

    async def send_log(self, chunks: Callable[[], Iterable[bytes]], killed: int, *, deadline_s: float) -> None:
        """Hand over what Gym printed. Raises `EvaluatorError`."""

        async def call(session: aiohttp.ClientSession) -> None:
            body = _stream(chunks())
            async with session.post(
                self._url + HOST_LOG_PATH, data=body, headers={KILLED_HEADER: str(killed)}
            ) as answer:
                await _require_success(answer)

        await self._retry("the log", call, deadline_s)

    async def fetch_environment(self, archive: Path) -> str:
        """Write the staged environment's archive to `archive`; return the tree's digest. Raises `EvaluatorError`."""
        digest = ""

        async def call(session: aiohttp.ClientSession) -> None:
            nonlocal digest
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_TIMEOUT_S, sock_read=_REQUEST_TIMEOUT_S)
            async with session.get(self._url + ENVIRONMENT_PATH, timeout=timeout) as response:
                await _require_success(response)
                digest = response.headers.get(ENVIRONMENT_DIGEST_HEADER, "")
                if not digest:
                    raise EvaluatorError(f"the evaluator sent the environment without {ENVIRONMENT_DIGEST_HEADER}")
                await _save(response, archive)

        await self._retry("the staged environment", call, self._deadline_s)
        return digest

    async def _retry(
        self, what: str, call: Callable[[aiohttp.ClientSession], Awaitable[None]], deadline_s: float
    ) -> None:
        deadline, pause = time.monotonic() + deadline_s, _FIRST_PAUSE_S
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            while True:
                try:
                    return await call(session)
                except (aiohttp.ClientError, TimeoutError, OSError, _RetryableError) as error:
                    if time.monotonic() + pause > deadline:
                        detail = str(error) or type(error).__name__
                        raise EvaluatorError(
                            f"{what}: no success at {self._url} within {deadline_s:g} s: {detail}"
                        ) from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)


async def _require_success(response: aiohttp.ClientResponse) -> None:
    if response.status < 300:
        return
    answer = f"HTTP {response.status}: {(await response.text(errors='replace'))[:500]}"
    if response.status >= 500 or response.status in (408, 425, 429):
        raise _RetryableError(answer)
    raise EvaluatorError(f"the evaluator refused {response.method} {response.url.path}: {answer}")


async def _stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _save(response: aiohttp.ClientResponse, archive: Path) -> None:
    size = 0
    with archive.open("wb") as file:
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            size += len(chunk)
            if size > MAX_TAR_BYTES:
                raise EvaluatorError(f"the environment's archive is larger than {MAX_TAR_BYTES >> 20} MiB")
            file.write(chunk)
