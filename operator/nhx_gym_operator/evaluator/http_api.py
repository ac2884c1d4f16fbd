"""The evaluator's one HTTP API: model gateway, staged environment, host registration, progress, forward proxy."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware
from pydantic import TypeAdapter, ValidationError

from ..api.wire import endpoints
from ..api.wire.endpoints import HostRegistration
from ..in_pods.tokens import is_same
from .egress import EgressProxy, EgressRefused, is_forwarded
from .gateway import CALL_PATHS, CALLER, LOCAL_CALLER, MAX_REQUEST_BYTES, ModelGateway
from .hosts import HostRegistry
from .packing import PackedEnvironment
from .plan import Tokens
from .progress import ProgressState

MAX_REGISTRATION_BYTES = 256 * 1024
REGISTRATION_SECONDS = 30.0
"""For one to arrive whole, once its turn has come."""
REGISTRATIONS_AT_ONCE = 4
"""Of one host: what is read of them is held, and each connection could bring one that never ends."""
BACKLOG = 1024
MAX_CONNECTIONS_OF_ONE = 2048
"""Of a job's Gym: twice as many as it may have rollouts at once. One that waits with a request unread takes some 100
KiB, so that they take a tenth of an evaluator's default of 2 GiB; the operator's own come from another address."""
TELL_AGAIN_SECONDS = 60.0
_BEARER = "Bearer "

log = logging.getLogger(__name__)


def _without_request(record: logging.LogRecord) -> bool:
    """aiohttp logs a request that is no HTTP as it came, with the token that stands in it."""
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.exc_info, record.exc_text = None, None
        record.msg, record.args = "a request was refused that is no HTTP", None
    return True


logging.getLogger("aiohttp.server").addFilter(_without_request)


@dataclass(frozen=True)
class Backends:
    """What the API gives access to. Without hosts or environment those paths do not exist; without `egress` it is no
    proxy."""

    tokens: Tokens
    gateway: ModelGateway
    progress: ProgressState
    hosts: HostRegistry | None = None
    environment: PackedEnvironment | None = None
    egress: EgressProxy | None = None


def make_app(backends: Backends) -> web.Application:
    """The API as an aiohttp application.

    `GET /healthz` is open. `GET /progress` takes the progress token; everything else a host's token (or
    that of the Gym in this container), which never opens another host's registration.
    """
    middlewares = [_logged, _authorized(backends.tokens)]
    if backends.egress is not None:
        # Before the API's own: here Authorization is for another host, and the path is one of its paths.
        middlewares.insert(1, _forwarding(backends.egress, backends.tokens))
    app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=middlewares)
    api = _Api(backends)
    calls = "|".join(CALL_PATHS)
    prefix = endpoints.MODEL_PATH
    app.router.add_get(endpoints.HEALTH_PATH, api.health)
    app.router.add_get(endpoints.PROGRESS_PATH, api.progress)
    app.router.add_post(endpoints.HOSTS_PATH, api.register)
    app.router.add_post(endpoints.HOST_LOG_PATH, api.host_log)
    app.router.add_get(endpoints.ENVIRONMENT_PATH, api.environment)
    app.router.add_get(f"{prefix}/models", backends.gateway.list_models)
    app.router.add_post(f"{prefix}/{{path:{calls}}}", backends.gateway.call)
    return app


@contextlib.asynccontextmanager
async def serving(app: web.Application, *, host: str | None, port: int, canary_port: int) -> AsyncIterator[int]:
    """Serve until the block is left; yields the API's port, which differs from `port` if that is 0."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=2.0)
    await runner.setup()
    assert runner.server is not None
    servers: list[asyncio.Server] = []
    try:
        connections = Connections(runner.server)
        loop = asyncio.get_running_loop()
        servers.append(await loop.create_server(connections.admission, host, port, backlog=BACKLOG))
        servers.append(await asyncio.start_server(_close, host, canary_port))
        yield servers[0].sockets[0].getsockname()[1]
    finally:
        for server in servers:
            server.close()
        await runner.cleanup()


class Connections:
    """Of one address at most so many at a time: each takes memory, and a call that waits for its turn is one."""

    def __init__(self, server: web.Server[web.Request]) -> None:
        self._server = server
        self._told = -math.inf

    def admission(self) -> asyncio.Protocol:
        """The protocol of a connection that nobody has looked at yet."""
        return _Admission(self)

    def admit(self, transport: asyncio.Transport) -> None:
        """Have the connection served, or end it."""
        if self._are_too_many(transport):
            transport.abort()
            return
        served = self._server()
        transport.set_protocol(served)
        served.connection_made(transport)

    def _are_too_many(self, transport: asyncio.Transport) -> bool:
        if len(self._server.connections) < MAX_CONNECTIONS_OF_ONE:
            return False
        peer = _peer(transport)
        if sum(_peer(handler.transport) == peer for handler in self._server.connections) < MAX_CONNECTIONS_OF_ONE:
            return False
        if time.monotonic() - self._told > TELL_AGAIN_SECONDS:
            self._told = time.monotonic()
            log.warning("%s has %d connections, and gets no more", peer, MAX_CONNECTIONS_OF_ONE)
        return True


class _Admission(asyncio.Protocol):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connections.admit(transport)


def _peer(transport: asyncio.BaseTransport | None) -> str:
    name = transport.get_extra_info("peername") if transport else None
    return name[0] if name else ""


async def _close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


class _Api:
    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._registering = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(REGISTRATIONS_AT_ONCE))

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def progress(self, request: web.Request) -> web.Response:
        self._backends.progress.images |= _digests(request.headers.get(endpoints.IMAGES_HEADER, ""))
        usage = self._backends.gateway.usage()
        progress = self._backends.progress.snapshot().model_copy(update={"usage": usage})
        return web.Response(body=progress.model_dump_json().encode(), content_type="application/json")

    async def register(self, request: web.Request) -> web.Response:
        hosts = self._backends.hosts
        if hosts is None:
            return _refused(404, "this job has no gym hosts")
        try:
            async with self._registering[request[CALLER]], asyncio.timeout(REGISTRATION_SECONDS):
                body = await request.clone(client_max_size=MAX_REGISTRATION_BYTES).read()
        except TimeoutError:
            answer = _refused(408, f"the registration did not arrive within {REGISTRATION_SECONDS:g} s")
            answer.force_close()
            return answer
        except web.HTTPRequestEntityTooLarge:
            return _refused(413, f"a registration has at most {MAX_REGISTRATION_BYTES} bytes")
        try:
            registration = HostRegistration.model_validate_json(body)
        except ValidationError as error:
            return _refused(422, f"not a HostRegistration: {error.error_count()} invalid fields")
        if registration.ordinal != request[CALLER]:
            return _refused(403, f"this token is not that of host {registration.ordinal}")
        hosts.register(registration, request.remote or "")
        return web.json_response({"status": "registered"})

    async def host_log(self, request: web.Request) -> web.Response:
        """The log of the host whose token it is; what it sends has a bound, and its name is not its own to choose."""
        hosts = self._backends.hosts
        if hosts is None:
            return _refused(404, "this job has no gym hosts")
        size = 0
        with hosts.log_file(request[CALLER]).open("wb") as file:
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > endpoints.HOST_LOG_LIMIT_BYTES:
                    return _refused(413, f"a log has at most {endpoints.HOST_LOG_LIMIT_BYTES} bytes")
                file.write(chunk)
        killed = request.headers.get(endpoints.KILLED_HEADER, "")
        hosts.ended(request[CALLER], int(killed) if killed.isdecimal() and len(killed) < 6 else 0)
        return web.json_response({"status": "kept"})

    async def environment(self, _: web.Request) -> web.StreamResponse:
        environment = self._backends.environment
        if environment is None:
            return _refused(404, "this job has no staged environment")
        headers = {endpoints.ENVIRONMENT_DIGEST_HEADER: environment.digest, "Content-Type": "application/x-tar"}
        return web.FileResponse(environment.archive, headers=headers)


def _authorized(tokens: Tokens) -> Middleware:
    known = _known(tokens)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == endpoints.HEALTH_PATH:
            return await handler(request)
        given = request.headers.get("Authorization", "").removeprefix(_BEARER)
        if request.path == endpoints.PROGRESS_PATH:
            allowed = is_same(given, tokens.progress)
        else:
            caller = _caller(known, given)
            allowed = caller is not None
            if caller is not None:
                request[CALLER] = caller
        if not allowed:
            return _refused(401, "no valid job token")
        return await handler(request)

    return middleware


def _forwarding(egress: EgressProxy, tokens: Tokens) -> Middleware:
    known = _known(tokens)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_forwarded(request):
            return await handler(request)
        try:
            if _caller(known, _proxy_password(request)) is None:
                egress.count_stranger()
                raise EgressRefused(407, "no valid job token")
            return await egress.forward(request)
        except EgressRefused as refused:
            answer = _refused(refused.status, str(refused))
            if refused.status == 407:
                answer.headers["Proxy-Authenticate"] = 'Basic realm="nhx"'
            # What follows a refused CONNECT is no request.
            answer.force_close()
            return answer

    return middleware


def _proxy_password(request: web.Request) -> str:
    """Of the credentials that a client takes from a proxy's address (RFC 7617); empty if there are none."""
    scheme, _, credentials = request.headers.get("Proxy-Authorization", "").partition(" ")
    try:
        password = base64.b64decode(credentials).partition(b":")[2] if scheme.lower() == "basic" else b""
    except ValueError:
        return ""
    return password.decode(errors="surrogateescape")


def _known(tokens: Tokens) -> dict[int, str]:
    """Tokens of those who may call, by who it is."""
    return {**tokens.hosts, LOCAL_CALLER: tokens.local_gym}


def _caller(known: dict[int, str], given: str) -> int | None:
    """Whose token it is. Every one is compared, so that the time taken says nothing about which one it was."""
    callers = [caller for caller, token in known.items() if is_same(given, token)]
    return callers[0] if callers else None


@web.middleware
async def _logged(request: web.Request, handler: Handler) -> web.StreamResponse:
    started = time.monotonic()
    status = 0
    try:
        response = await handler(request)
        status = response.status
        return response
    except web.HTTPException as error:
        status = error.status
        return _refused(status, error.reason)
    finally:
        went_wrong = (status >= 400 or status == 0) and not (status == 401 and _is_gyms_probe(request))
        level = logging.WARNING if went_wrong else logging.DEBUG
        if log.isEnabledFor(level):
            took = time.monotonic() - started
            line = "%s %s from %s: %d in %.2f s"
            log.log(level, line, request.method, request.raw_path[:120], request.remote, status, took)


def _is_gyms_probe(request: web.Request) -> bool:
    """Before it starts, Gym looks whether anything answers at a model's address, with no token and content with any
    answer (`_probe_endpoint` in `nemo_gym/cli/env.py`): that 401 is no wrong key."""
    return (
        request.method == "GET"
        and "Authorization" not in request.headers
        and request.path.startswith("/models/")
        and request.path.endswith("/v1/models")
    )


def _digests(header: str) -> dict[str, str]:
    """What the operator says of the images; nothing where it does not, or not in a way that is understood."""
    try:
        return TypeAdapter(dict[str, str]).validate_json(header) if header else {}
    except ValidationError:
        return {}


def _refused(status: int, message: str) -> web.Response:
    body = {"error": {"message": message, "type": "nhx_evaluator", "code": str(status)}}
    return web.json_response(body, status=status)
