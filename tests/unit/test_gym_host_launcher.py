"""What a gym host tells its evaluator while it serves."""

import asyncio
from types import SimpleNamespace

import pytest
from aiohttp import web

from nhx_gym_operator.api.wire.endpoints import HOSTS_PATH
from nhx_gym_operator.gym_host import launcher
from nhx_gym_operator.gym_host.launcher import Launcher
from nhx_gym_operator.workloads import plans
from support.controller_values import workload


async def test_a_ready_host_says_so_again_also_to_an_evaluator_that_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "TELL_AGAIN_S", 0.1)
    told: list[dict] = []
    is_away = True

    async def register(request: web.Request) -> web.Response:
        told.append(await request.json())
        return web.Response(status=503 if is_away else 200)

    app = web.Application()
    app.router.add_post(HOSTS_PATH, register)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        plan = plans.host_plan(workload(), 0).model_copy(update={"evaluator_url": url})
        host = Launcher(plan, "token", SimpleNamespace(tail=list, mask=str, kept=None))
        telling = asyncio.create_task(host._keep_telling())
        async with asyncio.timeout(60):
            while len(told) < 3:
                await asyncio.sleep(0.02)
            is_away, before = False, len(told)
            while len(told) < before + 3:
                await asyncio.sleep(0.02)
        telling.cancel()
    finally:
        await runner.cleanup()
    assert {(each["state"], each["ordinal"], each["boot_id"]) for each in told} == {("ready", 0, host._boot_id)}
