"""The evaluator as a forward proxy: real sockets, real TLS, and names that lead where a test wants them to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from nhx_gym_operator.api.wire.endpoints import EgressUse
from nhx_gym_operator.api.wire.plans import EgressPlan
from nhx_gym_operator.evaluator import addresses
from nhx_gym_operator.evaluator.egress import EGRESS_LOG, EgressProxy
from nhx_gym_operator.evaluator.egress import proxy as egress_module
from nhx_gym_operator.evaluator.gateway import ModelGateway
from nhx_gym_operator.evaluator.http_api import Backends, make_app, serving
from nhx_gym_operator.evaluator.model_keys import ModelKeys
from nhx_gym_operator.evaluator.progress import ProgressState
from nhx_gym_operator.evaluator.rollout_calls import RolloutCalls
from nhx_gym_operator.gym_host import gym_config
from support.certificates import Certificates, private_authority
from unit.evaluator_fakes import TOKENS, evaluator_url, paths_in, route
from unit.evaluator_fakes import row as row_of
from unit.evaluator_fakes import world as world_of
from unit.test_gym_host_config import plan as host_plan

HOST = "allowed.example"
HERE = "127.0.0.1"
TOKEN = "host-token-0"
METADATA = "169.254.169.254"
NAMES = {
    HOST: HERE,
    "other.example": HERE,
    "pages.example": HERE,
    "a.pages.example": HERE,
    "cloud.example": METADATA,
    "mapped.example": f"::ffff:{METADATA}",
    "cluster.example": "10.96.0.1",
    "cluster-by-ipv6.example": "::ffff:10.96.0.1",
}


@pytest.fixture(autouse=True)
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names as they were looked up. 127.0.0.1 is an address like another here, or no test could listen."""
    real_look_up, real_judgement = socket.getaddrinfo, addresses.is_refused
    asked: list[str] = []

    def look_up(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host in NAMES:
            asked.append(host)
        return real_look_up(NAMES.get(host, host), port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses, "is_refused", lambda address: str(address) != HERE and real_judgement(address))
    return asked


def basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


@dataclass
class Upstream:
    """A server that says what it was asked."""

    port: int = 0
    asked: list[web.Request] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, HERE, 0, ssl_context=tls).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        if request.path == "/moved":
            raise web.HTTPFound("http://other.example/")
        if request.path == "/long":
            return web.Response(body=b"x" * 200_000)
        said = {"path": request.path_qs, "headers": dict(request.headers), "body": (await request.read()).decode()}
        return web.json_response(said, status=418, headers={"X-Theirs": "kept", "Keep-Alive": "timeout=5"})


@dataclass
class Proxied:
    url: str
    file: Path
    egress: EgressProxy

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    async def logged(self, count: int) -> list[dict[str, Any]]:
        """Lines are written when a request ends, which may be after its answer was read."""
        async with asyncio.timeout(10):
            while len(self.lines) < count:
                await asyncio.sleep(0.01)
        assert len(self.lines) == count
        return self.lines

    async def ask(
        self, url: str | URL, method: str = "GET", *, token: str = TOKEN, tls: ssl.SSLContext | None = None, **more: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        by = URL(self.url).with_user("nhx").with_password(token) if token else self.url
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(method, url, proxy=by, ssl=tls or True, allow_redirects=False, **more) as answer,
        ):
            return answer.status, answer.headers, await answer.read()

    async def refusal(self, url: str) -> tuple[int, str]:
        status, _, body = await self.ask(url)
        return status, json.loads(body)["error"]["message"]

    @contextlib.asynccontextmanager
    async def tunnel(
        self, authority: str, credentials: str = f"nhx:{TOKEN}"
    ) -> AsyncIterator[tuple[str, asyncio.StreamReader, asyncio.StreamWriter]]:
        """Its status line, and what comes after the head."""
        reader, writer = await asyncio.open_connection(HERE, self.port)
        head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: {basic(credentials)}\r\n\r\n"
        writer.write(head.encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        try:
            yield answer.splitlines()[0], reader, writer
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def proxy(directory: Path, *allow: str, shut: tuple[str, ...] = ()) -> AsyncIterator[Proxied]:
    file = directory / "attempt-1" / EGRESS_LOG
    egress = EgressProxy(EgressPlan(allow=list(allow), shut=list(shut)), file)
    async with aiohttp.ClientSession() as session:
        gateway = ModelGateway([route()], ModelKeys(paths_in(directory).model_keys), session, RolloutCalls())
        app = make_app(Backends(TOKENS, gateway, ProgressState(1), egress=egress))
        async with serving(app, host=HERE, port=0, canary_port=0) as port:
            yield Proxied(f"http://{HERE}:{port}", file, egress)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return private_authority(tmp_path_factory.mktemp("tls"), HOST)


@pytest.fixture
def theirs(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    return context


@pytest.fixture
def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.authority)


async def test_http_is_passed_on_as_it_came_but_for_what_is_between_neighbours(tmp_path: Path) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        headers = {"Authorization": "Bearer theirs", "Connection": "x-mine, keep-alive", "X-Mine": "1", "X-Yours": "2"}
        url = URL(f"http://{HOST}:{there.port}/a%20b?c=%2F", encoded=True)
        status, got, body = await by.ask(url, "PUT", headers=headers, data=b"content")
    said = json.loads(body)
    assert status == 418 and got["X-Theirs"] == "kept" and "Keep-Alive" not in got
    assert said["path"] == "/a%20b?c=%2F" and said["body"] == "content"
    assert said["headers"]["Authorization"] == "Bearer theirs" and said["headers"]["X-Yours"] == "2"
    assert said["headers"]["Host"] == f"{HOST}:{there.port}"
    assert not {"Proxy-Authorization", "X-Mine"} & said["headers"].keys()
    assert TOKEN not in body.decode()


async def test_a_packed_body_arrives_whole_and_a_long_answer_too(tmp_path: Path) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        url, packed = f"http://{HOST}:{there.port}", gzip.compress(b"content")
        _, _, body = await by.ask(f"{url}/a", "POST", data=packed, headers={"Content-Encoding": "gzip"})
        assert json.loads(body)["body"] == "content"
        status, _, long = await by.ask(f"{url}/long")
    assert status == 200 and len(long) == 200_000


async def test_a_redirect_is_the_clients_to_follow(tmp_path: Path) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        status, headers, _ = await by.ask(f"http://{HOST}:{there.port}/moved")
    assert (status, headers["Location"]) == (302, "http://other.example/")
    assert len(there.asked) == 1


async def test_tls_goes_through_a_tunnel_from_end_to_end(
    tmp_path: Path, theirs: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async with Upstream().serve(theirs) as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        url = f"https://{HOST}:{there.port}/secret"
        status, _, body = await by.ask(url, "POST", tls=trusting, data=b"x" * 300_000)
        (line,) = await by.logged(1)
    said = json.loads(body)
    assert status == 418 and len(said["body"]) == 300_000
    assert "Proxy-Authorization" not in said["headers"]
    assert (line["method"], line["host"], line["port"], line["status"]) == ("CONNECT", HOST, there.port, 200)
    assert line["sent"] > 300_000 and line["received"] > 300_000 and "why" not in line


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_client_that_heeds_the_hosts_variables_needs_nothing_else(
    tmp_path: Path,
    theirs: ssl.SSLContext,
    trusting: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
) -> None:
    tls = theirs if scheme == "https" else None
    async with Upstream().serve(tls) as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        plan = host_plan().model_copy(update={"egress": True, "evaluator_url": by.url})
        variables = gym_config.environment_variables(plan, "{}", TOKEN, environment=False, inherited={})
        for name in [name for name in variables if "proxy" in name.lower()]:
            monkeypatch.setenv(name, variables[name])
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trusting))
        with pytest.raises(urllib.error.HTTPError) as answered:
            await asyncio.to_thread(opener.open, f"{scheme}://{HOST}:{there.port}/a", timeout=10)
        assert answered.value.code == 418
        with pytest.raises(urllib.error.URLError, match="403"):
            await asyncio.to_thread(opener.open, f"{scheme}://other.example:{there.port}/a", timeout=10)
    assert len(there.asked) == 1


@pytest.mark.parametrize("host", ["other.example", "allowed.example.evil.test", "pages.example", HERE])
async def test_a_host_that_is_not_in_the_jobs_list_is_refused_with_the_list(
    tmp_path: Path, looked_up: list[str], host: str
) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}", "*.pages.example") as by:
        status, words = await by.refusal(f"http://{host}:{there.port}/")
        assert status == 403
        assert words.startswith(f"this job may not reach {host}:{there.port};")
        assert words.endswith(f"its spec.egress.allow has {HOST}:{there.port}, *.pages.example")
        async with by.tunnel(f"{host}:{there.port}") as (answer, *_):
            assert answer == "HTTP/1.1 403 Forbidden"
        lines = await by.logged(2)
    assert not there.asked and host not in looked_up
    assert [(line["method"], line["status"], line["why"]) for line in lines] == [
        ("GET", 403, words),
        ("CONNECT", 403, words),
    ]


@pytest.mark.parametrize(
    "request_line",
    [
        "GET http://{allowed}@other.example/ HTTP/1.1",
        "GET http://{allowed}\\@other.example/ HTTP/1.1",
        "GET http://allowed.example.:{port}/ HTTP/1.1",
        "GET http://2130706433:{port}/ HTTP/1.1",
        "GET http://{allowed}/\x0b HTTP/1.1",
        "CONNECT {allowed}@other.example:443 HTTP/1.1",
    ],
)
async def test_no_spelling_of_a_target_leads_to_another_host(tmp_path: Path, request_line: str) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        line = request_line.format(allowed=f"{HOST}:{there.port}", port=there.port)
        reader, writer = await asyncio.open_connection(HERE, by.port)
        writer.write(f"{line}\r\nHost: {HOST}\r\nProxy-Authorization: {basic(f'nhx:{TOKEN}')}\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] in (b"400", b"403")
        writer.close()
    assert not there.asked


async def test_nothing_is_upgraded_and_what_follows_is_no_request(tmp_path: Path) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        head = f"Host: x\r\nProxy-Authorization: {basic(f'nhx:{TOKEN}')}\r\nConnection: Upgrade\r\nUpgrade: websocket"
        one, two = (f"GET http://{HOST}:{there.port}/{name} HTTP/1.1\r\n{head}\r\n\r\n" for name in ("one", "two"))
        reader, writer = await asyncio.open_connection(HERE, by.port)
        writer.write(f"{one}{two}".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 418")
        await by.logged(1)
        writer.close()
    (asked,) = there.asked
    assert asked.path == "/one" and "Upgrade" not in asked.headers


async def test_another_port_of_an_allowed_host_is_another_host(tmp_path: Path) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, HOST) as by:
        status, words = await by.refusal(f"http://{HOST}:{there.port}/")
    assert status == 403 and f"{HOST}:{there.port}" in words and not there.asked


@pytest.mark.parametrize("credentials", ["", "nhx:", "nhx:wrong", "nhx:progress-token", TOKEN])
async def test_nobody_is_served_without_the_hosts_token(tmp_path: Path, credentials: str) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        # The token in the place of the other host's own does not count either.
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if credentials:
            headers["Proxy-Authorization"] = basic(credentials)
        status, got, _ = await by.ask(f"http://{HOST}:{there.port}/", token="", headers=headers)
        assert status == 407 and got["Proxy-Authenticate"] == 'Basic realm="nhx"'
        async with by.tunnel(f"{HOST}:{there.port}", credentials) as (answer, *_):
            assert answer.startswith("HTTP/1.1 407")
        use = by.egress.use()
    assert not there.asked and not by.lines
    assert (use.requests, use.refused, use.passed) == (2, 2, {})


@pytest.mark.parametrize("host", ["cloud.example", "mapped.example", METADATA])
async def test_a_name_that_leads_to_an_address_nobody_may_reach_is_refused(tmp_path: Path, host: str) -> None:
    async with proxy(tmp_path, host) as by:
        status, words = await by.refusal(f"http://{host}/latest/meta-data")
        async with by.tunnel(f"{host}:443") as (answer, *_):
            assert answer == "HTTP/1.1 403 Forbidden"
    assert status == 403 and METADATA in words and "metadata server" in words


@pytest.mark.parametrize("host", ["cluster.example", "cluster-by-ipv6.example", "10.96.0.1"])
async def test_what_the_gate_proves_shut_is_not_opened_by_any_name(tmp_path: Path, host: str) -> None:
    async with proxy(tmp_path, host, shut=("10.96.0.1",)) as by:
        status, words = await by.refusal(f"http://{host}/api")
    assert status == 403 and "no sandbox may reach" in words


async def test_a_private_address_is_reached_by_a_name_that_is_spelled_out_and_by_no_other(tmp_path: Path) -> None:
    async with Upstream().serve() as there:
        url = f"http://a.pages.example:{there.port}/"
        async with proxy(tmp_path, f"*.pages.example:{there.port}") as by:
            status, words = await by.refusal(url)
            assert status == 403 and f"the private address {HERE}" in words and not there.asked
        async with proxy(tmp_path, f"a.pages.example:{there.port}") as by:
            assert (await by.ask(url))[0] == 418


async def test_a_name_is_looked_up_once_for_a_request(tmp_path: Path, looked_up: list[str]) -> None:
    """What was judged is what is connected to: a second answer could be another one."""
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        await by.ask(f"http://{HOST}:{there.port}/")
        assert looked_up == [HOST]
        async with by.tunnel(f"{HOST}:{there.port}"):
            assert looked_up == [HOST, HOST]


async def test_a_host_that_cannot_be_reached_is_named_with_the_reason(tmp_path: Path) -> None:
    with socket.create_server((HERE, 0)) as closed:
        port = closed.getsockname()[1]
    async with proxy(tmp_path, f"{HOST}:{port}", "nowhere.invalid") as by:
        async with by.tunnel(f"{HOST}:{port}") as (answer, *_):
            assert answer == "HTTP/1.1 502 Bad Gateway"
        assert (await by.refusal(f"http://{HOST}:{port}/"))[0] == 502
        assert await by.refusal("http://nowhere.invalid/") == (502, "nowhere.invalid: no such host is known here")
        refused, *_ = await by.logged(3)
    assert refused["why"] == f"{HOST}:{port}: the connection was refused"


def hello_for(name: str | None) -> bytes:
    """What a TLS client says first."""
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"GET /secret HTTP/1.1\r\nHost: allowed.example\r\n\r\n", "no TLS"),
        (b"SSH-2.0-client\r\n", "no TLS"),
        (hello_for("other.example"), "for other.example"),
        (hello_for(None), "for no name"),
    ],
    ids=["http", "ssh", "another name", "no name"],
)
async def test_a_tunnel_is_for_tls_with_the_host_that_was_asked_for(tmp_path: Path, first: bytes, words: str) -> None:
    heard = b""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard += await reader.read(1 << 16)
        writer.close()

    async with await asyncio.start_server(hear, HERE, 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with proxy(tmp_path, f"{HOST}:{port}") as by, by.tunnel(f"{HOST}:{port}") as (answer, reader, writer):
            assert answer == "HTTP/1.1 200 OK"
            writer.write(first)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            (line,) = await by.logged(1)
    assert heard == b"" and words in line["why"]


async def test_a_hello_in_pieces_is_put_together_and_an_address_is_not_named(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1 << 16))
        writer.close()

    async with await asyncio.start_server(hear, HERE, 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with proxy(tmp_path, f"{HOST}:{port}", f"{HERE}:{port}") as by:
            hellos = {HOST: hello_for(HOST), HERE: hello_for(None)}
            for host, hello in hellos.items():
                async with by.tunnel(f"{host}:{port}") as (_, reader, writer):
                    for piece in (hello[:3], hello[3:90], hello[90:]):
                        writer.write(piece)
                        await asyncio.sleep(0.02)
                    assert await reader.read() == b""
    assert heard == list(hellos.values())


async def test_as_many_requests_at_once_as_there_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "AT_ONCE", 1)
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        async with by.tunnel(f"{HOST}:{there.port}"):
            status, words = await by.refusal(f"http://{HOST}:{there.port}/")
            assert status == 503 and "1 requests" in words
        await by.logged(2)
        assert (await by.ask(f"http://{HOST}:{there.port}/"))[0] == 418


async def test_a_tunnel_in_which_nothing_passes_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "IDLE_S", 0.2)
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        async with asyncio.timeout(10), by.tunnel(f"{HOST}:{there.port}") as (_, reader, _writer):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        (line,) = await by.logged(1)
    assert "no byte passed for 0.2 s" in line["why"] and line["seconds"] >= 0.2


async def test_a_job_has_its_bytes_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "MAX_BYTES", 100_000)
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        with pytest.raises(aiohttp.ClientError):
            await by.ask(f"http://{HOST}:{there.port}/long")
        (line,) = await by.logged(1)
        status, words = await by.refusal(f"http://{HOST}:{there.port}/")
    assert line["why"] == words and status == 403 and "100000 bytes" in words


async def test_with_the_log_full_nothing_goes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "MAX_LOG_BYTES", 1)
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        assert (await by.ask(f"http://{HOST}:{there.port}/"))[0] == 418
        await by.logged(1)
        status, words = await by.refusal(f"http://{HOST}:{there.port}/")
        assert status == 503 and "log" in words
        assert len(by.lines) == 1 and len(there.asked) == 1
        assert (by.egress.counts()["requests"], by.egress.counts()["refused"]) == (2, 1)


async def test_where_no_line_can_be_written_nothing_goes_out_again(tmp_path: Path) -> None:
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        by.file.parent.write_text("no directory")
        await by.ask(f"http://{HOST}:{there.port}/")
        assert (await by.refusal(f"http://{HOST}:{there.port}/"))[0] == 503
    assert len(there.asked) == 1


async def test_a_client_that_goes_away_frees_its_place_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_module, "AT_ONCE", 1)
    async with Upstream().serve() as there, proxy(tmp_path, f"{HOST}:{there.port}") as by:
        for number in range(3):
            async with by.tunnel(f"{HOST}:{there.port}") as (answer, *_):
                assert answer == "HTTP/1.1 200 OK"
            await by.logged(number + 1)


async def test_the_api_beside_it_is_as_it_was(tmp_path: Path) -> None:
    async with proxy(tmp_path, HOST) as by, aiohttp.ClientSession() as session:
        for token, status in ("progress-token", 200), (TOKEN, 401):
            async with session.get(f"{by.url}/progress", headers={"Authorization": f"Bearer {token}"}) as answer:
                assert answer.status == status
    assert not by.lines


async def test_what_a_sandbox_reached_is_in_its_jobs_bundle(tmp_path: Path) -> None:
    async with Upstream().serve() as there, world_of(tmp_path) as world:
        allow = [f"{HOST}:{there.port}"]
        plan = world.plan([row_of(0)], egress=EgressPlan(allow=allow))
        evaluation = world.evaluation(plan)
        running = asyncio.create_task(evaluation.run())
        url = await evaluator_url(evaluation)
        by = Proxied(url, world.paths.attempt(1) / EGRESS_LOG, None)  # type: ignore[arg-type]
        assert (await by.ask(f"http://{HOST}:{there.port}/"))[0] == 418
        assert (await by.refusal("http://other.example/"))[0] == 403
        for host in world.hosts:
            host.evaluator = url
            await host.register()
        outcome = await running
    assert outcome.state == "Complete", outcome.message
    assert [line["host"] for line in by.lines] == [HOST, "other.example"]
    provenance = json.loads((world.paths.attempt(1) / "provenance.json").read_text())["egress"]
    assert (provenance["allow"], provenance["requests"], provenance["refused"]) == (allow, 2, 1)
    assert provenance["received"] > 0 and provenance["passed"] == {allow[0]: 1}
    assert outcome.progress.egress == EgressUse(**{name: provenance[name] for name in EgressUse.model_fields})


async def test_what_was_asked_is_counted_by_the_lists_entries_and_never_by_what_the_sandbox_wrote(
    tmp_path: Path,
) -> None:
    async with Upstream().serve() as there:
        own, any_ = f"{HOST}:{there.port}", f"*.pages.example:{there.port}"
        async with proxy(tmp_path, own, any_, f"b.pages.example:{there.port}") as by:
            for _ in range(2):
                await by.ask(f"http://{HOST}:{there.port}/")
            await by.refusal("http://chosen-by-the-environment.example/")
            # The entry allows it, and what the name leads to does not.
            await by.refusal(f"http://a.pages.example:{there.port}/")
            use = by.egress.use()
    assert (use.requests, use.refused, use.passed) == (4, 2, {own: 2})
    assert use.received > 0


async def test_the_status_is_told_of_a_few_entries_and_the_bundle_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_module, "MAX_NAMED", 1)
    async with Upstream().serve() as there:
        first, second = f"{HOST}:{there.port}", f"other.example:{there.port}"
        async with proxy(tmp_path, first, second) as by:
            for host in (HOST, "other.example", "other.example"):
                await by.ask(f"http://{host}:{there.port}/")
            assert by.egress.use().passed == {second: 2}
            assert by.egress.counts()["passed"] == {second: 2, first: 1}


@pytest.fixture(scope="module", autouse=True)
def _no_proxies_of_this_machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
            patch.delenv(name, raising=False)
            patch.delenv(name.upper(), raising=False)
        yield
