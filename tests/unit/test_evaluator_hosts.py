"""What the registry makes of hosts that fall silent, or that say more than they may."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from nhx_gym_operator.api.wire.endpoints import HOST_HEALTH_PATH, HOST_SHUTDOWN_PATH, HostRegistration, HostState
from nhx_gym_operator.evaluator import hosts
from nhx_gym_operator.evaluator.collect.through_hosts import ThroughHosts
from nhx_gym_operator.evaluator.hosts import HostRegistry
from nhx_gym_operator.evaluator.progress import ProgressState
from nhx_gym_operator.evaluator.rollout_calls import RolloutCalls
from unit.evaluator_fakes import target

ADDRESS = "127.0.0.1"


class FakeHost:
    """Answers `/health`, or not."""

    answers = True
    asked = 0

    async def health(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=200 if self.answers else 503)


@contextlib.asynccontextmanager
async def serving(host: FakeHost) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get(HOST_HEALTH_PATH, host.health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, ADDRESS, 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def registry(port: int | None) -> AsyncIterator[HostRegistry]:
    async with aiohttp.ClientSession() as session:
        yield HostRegistry({0: "token"}, 30, session, ProgressState(attempt=1, total=1), Path(), port=port)


def ready(port: int) -> HostRegistration:
    return HostRegistration(ordinal=0, state=HostState.READY, port=port, boot_id="b")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "PROBE_LOST_EVERY_S", 0.05)


async def test_a_host_that_fell_silent_is_taken_back_when_it_answers_again() -> None:
    fake = FakeHost()
    async with serving(fake) as port, registry(port) as known:
        known.register(ready(port), ADDRESS)
        host = known.ready()[0]
        fake.answers = False
        assert not await known.is_alive(host)
        assert known.ready() == []
        watching = asyncio.create_task(known.watch())
        fake.answers = True
        async with asyncio.timeout(5):
            assert await known.acquire() is host
        watching.cancel()


async def test_a_host_cannot_have_the_evaluator_call_another_port() -> None:
    fake, other = FakeHost(), FakeHost()
    async with serving(fake) as port, serving(other) as foreign, registry(port) as known:
        known.register(ready(foreign), ADDRESS)
        assert known.ready()[0].url == f"http://{ADDRESS}:{port}"
        assert other.asked == 0


async def test_a_host_cannot_have_the_evaluator_call_another_address() -> None:
    elsewhere = ready(80).model_dump() | {"pod_ip": "203.0.113.7"}
    async with registry(80) as known:
        known.register(HostRegistration.model_validate(elsewhere), ADDRESS)
        assert known.ready()[0].url == f"http://{ADDRESS}:80"


async def test_a_host_that_redirects_the_evaluator_leads_it_nowhere() -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 0).start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session, registry(port) as known:
        known.register(ready(port), ADDRESS)
        collector = ThroughHosts(known, session, RolloutCalls(), target())
        assert not await known.is_alive(known.ready()[0])
        known.register(ready(port).model_copy(update={"boot_id": "c"}), ADDRESS)
        await collector.__aexit__()
    await runner.cleanup()
    assert set(seen) == {HOST_HEALTH_PATH, HOST_SHUTDOWN_PATH}


async def test_a_host_that_started_again_has_yet_to_say_that_it_ended() -> None:
    async with registry(None) as live:
        live.register(HostRegistration(ordinal=0, state=HostState.READY, boot_id="first"), ADDRESS)
        live.ended(0, killed=0)
        live.register(HostRegistration(ordinal=0, state=HostState.READY, boot_id="second"), ADDRESS)
        assert await live.all_ended([0], timeout_s=0.05) == []
