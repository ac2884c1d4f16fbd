"""What HTTP asks of a proxy: whom a request is for, and how it is passed on as it came."""

from __future__ import annotations

import socket

import aiohttp
from aiohttp import hdrs, web
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ..checked_proxy import CONNECT_S

_OF_ONE_CONNECTION = frozenset(
    {
        "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade", "expect", "host",
    }
)  # fmt: skip
"""Headers between two neighbours (RFC 9110, 7.6.1). `Host` is made anew from the address that was judged."""
_UNPACKED = frozenset({"gzip", "deflate", "br", "zstd"})
"""Codings in which aiohttp's server hands on a request's body unpacked."""


class EgressRefused(Exception):
    """Nothing was passed on. `status` is what the client gets."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def is_forwarded(request: web.Request) -> bool:
    """Whether a request is for another host, by the form of its target (RFC 9112, 3.2)."""
    return request.method == hdrs.METH_CONNECT or not request.raw_path.startswith(("/", "*"))


def asked(request: web.Request) -> tuple[str, int, URL | None]:
    """Host and port that a request is for, and its URL if it is no tunnel. Raises `EgressRefused`."""
    if request.method == hdrs.METH_CONNECT:
        target, url = request.url, None
    else:
        target = url = URL(request.raw_path, encoded=True).with_user(None)
        if url.scheme != "http":
            raise EgressRefused(400, f"{url.scheme[:16]!r} is not passed on; https goes through a tunnel (CONNECT)")
    host, port = (target.raw_host or "").lower(), target.port
    if not host or port is None:
        raise EgressRefused(400, "the request names no host and port")
    return host[:253], port, url


def request_headers(request: web.Request) -> CIMultiDict[str]:
    headers = end_to_end(request.headers)
    if headers.get(hdrs.CONTENT_ENCODING, "").lower() in _UNPACKED:
        del headers[hdrs.CONTENT_ENCODING]
        headers.popall(hdrs.CONTENT_LENGTH, None)
    return headers


def end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for value in headers.getall(hdrs.CONNECTION, ()) for name in value.split(",")}
    dropped = _OF_ONE_CONNECTION | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


class _Found(AbstractResolver):
    """Knows one host's addresses, those that were checked."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


def client(addresses: list[str]) -> aiohttp.ClientSession:
    """For one request, which is passed on as it came."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_Found(addresses), force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE),
    )
