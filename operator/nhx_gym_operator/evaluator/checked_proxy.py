"""The way out of a client that cannot be taught where not to go: a proxy that connects to checked addresses only.

obstore looks names up by itself and follows redirects wherever they lead; it has no setting for either, and one for a
proxy. This one listens on loopback, in the process that uses it.
"""

from __future__ import annotations

import contextlib
import http
import socket
import socketserver
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from .addresses import AddressRefused, look_up, trouble_in_words

CONNECT_S = 10.0
_CHUNK_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"
_OF_ONE_CONNECTION = (b"connection:", b"proxy-connection:", b"keep-alive:")


class CheckedProxy:
    """Runs as long as the process."""

    def __init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), _Connection)
        threading.Thread(target=self._server.serve_forever, name="checked-proxy", daemon=True).start()

    @property
    def client_options(self) -> dict[str, str]:
        """What obstore is told, so that it goes this way. Nothing where the pod has a proxy of its own: then it is that
        one that looks names up."""
        if getproxies_environment().keys() & {"http", "https", "all"}:
            return {}
        return {"proxy_url": f"http://127.0.0.1:{self._server.server_address[1]}"}

    @property
    def refusal(self) -> str:
        """What was refused, if anything was."""
        return self._server.refusal

    @property
    def trouble(self) -> str:
        """Why the last connection could not be made; empty if it was, or none was tried."""
        return self._server.refusal or self._server.trouble


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128
    refusal = trouble = ""

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that broke is the client's to tell."""


class _Connection(socketserver.BaseRequestHandler):
    """One connection of the client: a tunnel to a TLS server, or one request to another."""

    server: _Server

    def handle(self) -> None:
        head, rest = self._head()
        method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
        is_tunnel = method == b"CONNECT"
        url = urlsplit(f"//{target.decode()}" if is_tunnel else target.decode())
        try:
            there = self._connected(url.hostname or "", url.port or 80)
        except AddressRefused as error:
            return self._answer(http.HTTPStatus.FORBIDDEN, str(error))
        except OSError as error:
            return self._answer(http.HTTPStatus.BAD_GATEWAY, trouble_in_words(error))
        with there:
            if is_tunnel:
                self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                rest = _as_to_a_server(head) + rest
            there.sendall(rest)
            sending = threading.Thread(target=_copy, args=(self.request, there), daemon=True)
            sending.start()
            _copy(there, self.request)
            sending.join()

    def _head(self) -> tuple[bytes, bytes]:
        read = b""
        while _HEAD_END not in read:
            piece = self.request.recv(_CHUNK_BYTES)
            if not piece or len(read) > _MAX_HEAD_BYTES:
                raise ConnectionError("no request came")
            read += piece
        head, _, rest = read.partition(_HEAD_END)
        return head, rest

    def _connected(self, host: str, port: int) -> socket.socket:
        """Connected to an address that was checked, not to a name that the next lookup may answer otherwise."""
        try:
            there = _first(host, look_up(host), port)
        except AddressRefused as error:
            self.server.refusal = str(error)
            raise
        except OSError as error:
            self.server.trouble = f"{host}: {trouble_in_words(error)}"
            raise
        self.server.trouble = ""
        return there

    def _answer(self, status: http.HTTPStatus, words: str) -> None:
        body = words.encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.request.sendall(head.encode() + body)


def _first(host: str, addresses: list[str], port: int) -> socket.socket:
    trouble = OSError(f"{host} has no address")
    for address in addresses:
        try:
            there = socket.create_connection((address, port), timeout=CONNECT_S)
        except OSError as error:
            trouble = error
        else:
            there.settimeout(None)
            return there
    raise trouble


def _as_to_a_server(head: bytes) -> bytes:
    """The request as a server is asked, and the last one on its connection: the client may send its next one, which
    may be for another server, the same way."""
    start, *fields = head.split(b"\r\n")
    method, target, version = start.split(b" ")
    path = target.split(b"/", 3)[3:]
    kept = [field for field in fields if not field.lower().startswith(_OF_ONE_CONNECTION)]
    return b"\r\n".join([b"%s /%s %s" % (method, *(path or [b""]), version), *kept, b"Connection: close"]) + _HEAD_END


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until either end has had enough; the other learns of it."""
    with contextlib.suppress(OSError):
        while piece := source.recv(_CHUNK_BYTES):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
