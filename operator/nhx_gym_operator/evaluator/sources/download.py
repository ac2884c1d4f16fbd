"""Downloads over HTTP: bounded in size and time, repeated where that may help, and told in the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
from yarl import URL

from ..addresses import AddressRefused, CheckedResolver, check_literal
from ..retries import delay_before_retry, is_retried
from ..trust import NoCertificates, distrust, trust
from .errors import StagingError

DEADLINE_S = 600.0
"""For all that one stage container fetches. A gym host's gate waits 900 s for the evaluator that comes after it."""
TRIES = 4
REDIRECTS = 5
_CONNECT_S = 15.0
_READ_S = 60.0
_CHUNK_BYTES = 1 << 20
_PROGRESS_S = 5.0
_REDIRECT = frozenset({301, 302, 303, 307, 308})
_WORDS = 300

log = logging.getLogger(__name__)


class _Again(Exception):
    """A failure that may pass. Its text is for the user; the headers may say when to ask again."""

    def __init__(self, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.headers = headers or {}


class _Absent(Exception):
    """HTTP 404."""


class Downloader:
    """Gets files into a directory. `field` is the source in the FileSet's spec, for messages."""

    def __init__(self, session: aiohttp.ClientSession, field: str, deadline: float) -> None:
        self._session = session
        self._field = field
        self.deadline = deadline
        """By the event loop's clock."""

    async def get(
        self,
        url: URL,
        target: Path,
        *,
        limit: int,
        shown: str,
        authorization: str | None = None,
        may_be_absent: bool = False,
    ) -> None:
        """Write what `url` answers to `target`; nothing on 404, if it may be absent. `shown` names it in log and
        messages: a URL may hold a signature. Raises `StagingError`."""
        for attempt in range(1, TRIES + 1):
            try:
                async with asyncio.timeout_at(self.deadline):
                    return await self._try(url, target, limit, shown, authorization)
            except _Absent as absent:
                if may_be_absent:
                    return None
                raise StagingError(str(absent)) from None
            except TimeoutError as error:
                if self._left() <= 0:
                    raise StagingError(f"{shown} was not fetched within {DEADLINE_S:g} s") from error
                trouble = _Again(str(error) or "no answer in time")
            except AddressRefused as error:
                raise StagingError(f"{shown} cannot be fetched: {error}") from None
            except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
                raise StagingError(distrust(error, self._field)) from error
            except (aiohttp.ClientError, ConnectionError) as error:
                trouble = _Again(str(error) or type(error).__name__)
            except _Again as again:
                trouble = again
            wait = delay_before_retry(attempt - 1, trouble.headers)
            if attempt == TRIES or wait >= self._left():
                raise StagingError(f"{shown} cannot be fetched: {trouble} (tried {attempt} times)")
            log.warning("%s: %s; again in %.1f s", shown, trouble, wait)
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _left(self) -> float:
        return self.deadline - asyncio.get_running_loop().time()

    async def _try(self, url: URL, target: Path, limit: int, shown: str, authorization: str | None) -> None:
        origin = url.origin()
        for _ in range(REDIRECTS + 1):
            _check(url)
            headers = {"Authorization": authorization} if authorization and url.origin() == origin else {}
            async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
                if answer.status not in _REDIRECT or "Location" not in answer.headers:
                    await self._require_success(answer, shown)
                    return await _save(answer, target, limit, shown)
                following = _joined(url, answer.headers["Location"], shown)
            if url.scheme == "https" and following.scheme != "https":
                raise StagingError(f"{shown} redirects from https to {following.scheme}://{following.host}")
            url = following
        raise StagingError(f"{shown} redirects more than {REDIRECTS} times")

    async def _require_success(self, answer: aiohttp.ClientResponse, shown: str) -> None:
        if answer.status == 200:
            return
        words = (await answer.content.read(_WORDS)).decode("utf-8", "replace")
        said = f"HTTP {answer.status} {answer.reason or ''}: {' '.join(words.split())}".rstrip(": ")
        if is_retried(answer.status, answer.headers):
            raise _Again(said, answer.headers)
        if answer.status == 404:
            raise _Absent(f"{shown} cannot be fetched: {said}")
        hint = f"; look at {self._field}'s credentials" if answer.status in (401, 403) else ""
        raise StagingError(f"{shown} cannot be fetched: {said}{hint}")


@contextlib.asynccontextmanager
async def downloader(field: str, ca_file: Path) -> AsyncIterator[Downloader]:
    """A downloader with a deadline of its own. Servers are verified against the system's authorities, and those in
    `ca_file` if it is there."""
    try:
        trusted = trust(ca_file, field)
    except NoCertificates as error:
        raise StagingError(str(error)) from error
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(), ssl=trusted)
    # What is fetched is taken as it is: an archive that is served with a content encoding stays one.
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=True,
    ) as session:
        yield Downloader(session, field, asyncio.get_running_loop().time() + DEADLINE_S)


def _joined(url: URL, location: str, shown: str) -> URL:
    try:
        return url.join(URL(location, encoded=True))
    except ValueError as error:
        raise StagingError(f"{shown} redirects to {location[:_WORDS]!r}, which is no address: {error}") from error


def _check(url: URL) -> None:
    if url.scheme not in ("http", "https") or not url.host:
        raise StagingError(f"{url.scheme}://{url.host} is no http:// or https:// address")
    # A name is checked by the resolver, which an address never comes by.
    check_literal(url.host)


async def _save(answer: aiohttp.ClientResponse, target: Path, limit: int, shown: str) -> None:
    expected = answer.content_length
    if expected is not None and expected > limit:
        raise StagingError(f"{shown} has {expected} bytes, more than the {limit} that are allowed")
    size, told = 0, time.monotonic()
    with target.open("wb") as file:
        async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
            size += len(chunk)
            if size > limit:
                raise StagingError(f"{shown} has more than the {limit} bytes that are allowed")
            file.write(chunk)
            if time.monotonic() - told > _PROGRESS_S:
                told = time.monotonic()
                log.info("%s: %d of %s bytes", shown, size, expected if expected is not None else "unknown")
    log.info("%s: %d bytes", shown, size)
