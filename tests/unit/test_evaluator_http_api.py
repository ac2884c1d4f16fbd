from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nhx_gym_operator.api.wire.endpoints import ENVIRONMENT_DIGEST_HEADER, Progress
from nhx_gym_operator.evaluator import http_api
from nhx_gym_operator.evaluator.gateway import ModelGateway
from nhx_gym_operator.evaluator.hosts import HostRegistry
from nhx_gym_operator.evaluator.http_api import Backends, make_app, serving
from nhx_gym_operator.evaluator.model_keys import ModelKeys
from nhx_gym_operator.evaluator.packing import PackedEnvironment
from nhx_gym_operator.evaluator.progress import ProgressState
from nhx_gym_operator.evaluator.rollout_calls import RolloutCalls
from unit.evaluator_fakes import TOKENS, paths_in, route

REGISTRATION = {"ordinal": 0, "state": "starting", "boot_id": "b"}


@contextlib.asynccontextmanager
async def api(directory: Path) -> AsyncIterator[tuple[str, HostRegistry]]:
    archive = directory / "environment.tar"
    archive.write_bytes(b"tar")
    async with aiohttp.ClientSession() as session:
        progress = ProgressState(attempt=1, total=10)
        gateway = ModelGateway([route()], ModelKeys(paths_in(directory).model_keys), session, RolloutCalls())
        hosts = HostRegistry(dict(TOKENS.hosts), 30, session, progress, directory)
        app = make_app(Backends(TOKENS, gateway, progress, hosts, PackedEnvironment(archive, "sha256:d")))
        async with serving(app, host="127.0.0.1", port=0, canary_port=0) as port:
            yield f"http://127.0.0.1:{port}", hosts


async def without_length(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def status(method: str, url: str, token: str | None, **more: Any) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(headers=headers) as session, session.request(method, url, **more) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/healthz", {None, "progress-token", "host-token-0", "host-token-1", "local-token", "x"}),
        ("GET", "/progress", {"progress-token"}),
        ("GET", "/environment", {"host-token-0", "host-token-1", "local-token"}),
        ("GET", "/models/policy/v1/models", {"host-token-0", "host-token-1", "local-token"}),
    ],
)
async def test_each_path_opens_to_its_own_token_only(
    tmp_path: Path, method: str, path: str, allowed: set[str | None]
) -> None:
    async with api(tmp_path) as (url, _):
        for token in (None, "", "x", "progress-token", "host-token-0", "host-token-1", "local-token"):
            expected = 200 if token in allowed or (not token and None in allowed) else 401
            assert await status(method, url + path, token) == expected, token


async def test_a_host_registers_only_itself(tmp_path: Path) -> None:
    async with api(tmp_path) as (url, _):
        assert await status("POST", f"{url}/hosts", "host-token-0", json=REGISTRATION) == 200
        assert await status("POST", f"{url}/hosts", "host-token-1", json=REGISTRATION) == 403
        assert await status("POST", f"{url}/hosts", "local-token", json=REGISTRATION) == 403
        assert await status("POST", f"{url}/hosts", "host-token-0", json={"ordinal": 0}) == 422
        big = REGISTRATION | {"message": "x" * 300_000}
        assert await status("POST", f"{url}/hosts", "host-token-0", json=big) == 413
        chunked = without_length(json.dumps(big).encode())
        assert await status("POST", f"{url}/hosts", "host-token-0", data=chunked) == 413


async def test_progress_is_the_wires_and_the_environment_carries_its_digest(tmp_path: Path) -> None:
    async with api(tmp_path) as (url, _), aiohttp.ClientSession() as session:
        headers = {"Authorization": "Bearer progress-token"}
        async with session.get(f"{url}/progress", headers=headers) as answer:
            progress = Progress.model_validate_json(await answer.read())
        headers = {"Authorization": "Bearer host-token-0"}
        async with session.get(f"{url}/environment", headers=headers) as answer:
            environment = (answer.headers[ENVIRONMENT_DIGEST_HEADER], await answer.read())
    assert (progress.total, progress.hosts) == (10, len(TOKENS.hosts))
    assert progress.message.startswith("waiting for gym host 0 to register")
    assert environment == ("sha256:d", b"tar")


async def test_a_refusal_is_logged_without_the_token_or_a_forged_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with api(tmp_path) as (url, _):
        await status("GET", f"{url}/environment%0Aforged-line{'x' * 500}", "wrong-token")
    assert "wrong-token" not in caplog.text
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("evaluator.http_api")]
    assert len(lines) == 1 and "\n" not in lines[0] and len(lines[0]) < 250


async def test_gyms_look_at_a_models_address_without_a_token_reads_like_no_wrong_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = [("GET", None), ("GET", "wrong"), ("POST", None)]
    async with api(tmp_path) as (url, _):
        answers = [await status(method, f"{url}/models/policy/v1/models", token) for method, token in asked]
    levels = [record.levelname for record in caplog.records if record.name.endswith("evaluator.http_api")]
    assert list(zip(answers, levels, strict=True)) == [(401, "DEBUG"), (401, "WARNING"), (401, "WARNING")]


async def test_the_canary_accepts_and_answers_nothing(tmp_path: Path) -> None:
    import asyncio

    async with aiohttp.ClientSession() as session:
        gateway = ModelGateway([route()], ModelKeys(paths_in(tmp_path).model_keys), session, RolloutCalls())
        app = make_app(Backends(TOKENS, gateway, ProgressState(1)))
        async with serving(app, host="127.0.0.1", port=0, canary_port=18_081):
            reader, writer = await asyncio.open_connection("127.0.0.1", 18_081)
            assert await reader.read() == b""
            writer.close()


async def test_what_a_host_says_about_itself_is_bounded(tmp_path: Path) -> None:
    async with api(tmp_path) as (url, hosts):
        boast = REGISTRATION | {"versions": {f"p{n}": "v" * 500 for n in range(400)}, "kernel": "k" * 9000}
        assert await status("POST", f"{url}/hosts", "host-token-0", json=boast) == 200
    assert len(hosts.versions) == 24 and max(map(len, hosts.versions.values())) == 64
    assert len(hosts.kernel) == 200


async def test_a_hosts_log_is_kept_under_the_name_that_its_token_gives_it(tmp_path: Path) -> None:
    async with api(tmp_path) as (url, hosts):
        assert (
            await status("POST", f"{url}/hosts/log", "host-token-1", data=b"said", headers={"X-Nhx-Killed": "2"}) == 200
        )
        (end,) = await hosts.all_ended([1], 5)
        assert await status("POST", f"{url}/hosts/log", "progress-token", data=b"said") == 401
    assert (end.file, end.lines, end.killed) == ("gym_env.host-1.log", ("said",), 2)
    assert not (tmp_path / "gym_env.log").exists()


async def test_a_log_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nhx_gym_operator.api.wire.endpoints.HOST_LOG_LIMIT_BYTES", 100)
    async with api(tmp_path) as (url, hosts):
        assert await status("POST", f"{url}/hosts/log", "host-token-0", data=without_length(b"x" * 1000)) == 413
        assert await hosts.all_ended([0], 0.05) == []


async def test_one_address_has_so_many_connections_and_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "MAX_CONNECTIONS_OF_ONE", 20)
    app = web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.Response()

    app.router.add_get("/", answer)
    async with http_api.serving(app, host="127.0.0.1", port=0, canary_port=0) as port:

        async def answers(source: str) -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            opened.append(writer)
            with contextlib.suppress(ConnectionError):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                return (await reader.read(12)) == b"HTTP/1.1 200"
            return False

        opened: list[asyncio.StreamWriter] = []
        hostile = [await answers("127.0.0.1") for _ in range(40)]
        assert hostile == [True] * 20 + [False] * 20
        assert await answers("127.0.0.2")
        for writer in opened[:20]:
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.05)
        assert await answers("127.0.0.1")
        for writer in opened:
            writer.close()


async def test_a_token_that_is_no_text_is_a_wrong_one(tmp_path: Path) -> None:
    async with api(tmp_path) as (url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(b"GET /environment HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()


async def test_registrations_that_never_end_are_few_and_ended_and_keep_no_other_host_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_api, "REGISTRATIONS_AT_ONCE", 1)
    monkeypatch.setattr(http_api, "REGISTRATION_SECONDS", 1.0)
    async with api(tmp_path) as (url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(
            b"POST /hosts HTTP/1.1\r\nHost: e\r\nAuthorization: Bearer host-token-0\r\nContent-Length: 9\r\n\r\n{"
        )
        await writer.drain()
        await asyncio.sleep(0.2)
        own = asyncio.create_task(status("POST", f"{url}/hosts", "host-token-0", json=REGISTRATION))
        other = REGISTRATION | {"ordinal": 1}
        assert await status("POST", f"{url}/hosts", "host-token-1", json=other) == 200
        assert not own.done(), "a second one of the same host is read beside the first"
        async with asyncio.timeout(20):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
            assert await own == 200
        writer.close()
