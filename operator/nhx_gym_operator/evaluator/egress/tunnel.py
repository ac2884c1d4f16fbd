"""Both ends of a tunnel (CONNECT), and how it is known for whom it is."""

from __future__ import annotations

import asyncio
import ssl

from aiohttp import web

from ..addresses import parsed, trouble_in_words
from ..checked_proxy import CONNECT_S
from .forwarding import EgressRefused

CHUNK_BYTES = 1 << 16


async def connected(host: str, addresses: list[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    trouble = OSError("it has no address")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(address, port, limit=CHUNK_BYTES)
        except OSError as error:
            trouble = error
    raise EgressRefused(502, f"{host}:{port}: {trouble_in_words(trouble)}")


class Hello:
    """Listens to how a tunnel begins, by the TLS library's own reading of a client's hello."""

    def __init__(self) -> None:
        self.heard = False
        self._is_tls = False
        self._name: str | None = None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._named
        self._incoming = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)

    def feed(self, data: bytes) -> None:
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError:
            # As it must: the hello was all there was to know, and nobody answers it here.
            self.heard = True

    def is_for(self, host: str) -> bool:
        """A host that is an address is not named: no client does that (RFC 6066, 3)."""
        return self._is_tls and ((self._name or "").lower() == host or (self._name is None and _is_address(host)))

    @property
    def words(self) -> str:
        if not self._is_tls:
            return "no TLS"
        return f"for {self._name[:253]}" if self._name else "for no name"

    def _named(self, _: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        self._is_tls, self._name = True, name
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


class Incoming:
    """What a client sends once its request became a tunnel, from where aiohttp hands it to a websocket otherwise."""

    def __init__(self, request: web.Request) -> None:
        if request.transport is None:
            raise ConnectionResetError("the client has gone")
        self.reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        self.reader.set_transport(request.transport)
        request.protocol.set_parser(self)  # type: ignore[arg-type]

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self.reader.feed_eof()


def _is_address(host: str) -> bool:
    try:
        parsed(host)
    except ValueError:
        return False
    return True
