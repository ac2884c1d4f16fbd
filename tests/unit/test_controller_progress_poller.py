"""Progress is read from the evaluators themselves, again and again."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from aiohttp import web

from nhx_gym_operator.api.wire.endpoints import IMAGES_HEADER, Progress, Stage
from nhx_gym_operator.controller import progress_poller
from nhx_gym_operator.controller.observation import ProgressSource
from support.controller_values import UID


@pytest.fixture
async def evaluator():
    """An evaluator's `/progress`: `answers` is what it says, `seen` who asked."""

    evaluator = SimpleNamespace(
        answers=Progress(stage=Stage.COLLECTING, attempt=1, done=1, total=10), status=200, seen=[], told=[]
    )

    async def answer(request):
        evaluator.seen.append(request.headers.get("Authorization", ""))
        evaluator.told.append(request.headers.get(IMAGES_HEADER))
        return web.Response(text=evaluator.answers.model_dump_json(), status=evaluator.status)

    app = web.Application()
    app.router.add_get("/progress", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    evaluator.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/progress"
    yield evaluator
    await runner.cleanup()


@pytest.fixture
async def poller(monkeypatch):
    monkeypatch.setattr(progress_poller, "INTERVAL_SECONDS", 0.02)
    changed = []
    poller = progress_poller.ProgressPoller(changed.append)
    poller.changed = changed
    task = asyncio.create_task(poller.run())
    yield poller
    task.cancel()


async def test_a_changed_answer_is_told_and_an_unchanged_one_is_not(poller, evaluator):
    poller.watch(UID, ProgressSource(evaluator.url, "token"))
    await asyncio.sleep(0.2)
    assert poller.changed == [UID]
    assert poller.latest(UID).done == 1
    assert set(evaluator.seen) == {"Bearer token"}
    evaluator.answers = Progress(stage=Stage.COLLECTING, attempt=1, done=2, total=10)
    await asyncio.sleep(0.2)
    assert poller.changed == [UID, UID]


async def test_the_evaluator_is_told_the_images_that_only_the_kubelet_knows(poller, evaluator):
    poller.watch(UID, ProgressSource(evaluator.url, "token", {"evaluator": "reg/nhx-tasks@sha256:00"}))
    await asyncio.sleep(0.2)
    assert json.loads(evaluator.told[0]) == {"evaluator": "reg/nhx-tasks@sha256:00"}


async def test_an_evaluator_that_does_not_answer_is_asked_again(poller, evaluator):
    evaluator.status = 503
    poller.watch(UID, ProgressSource(evaluator.url, "token"))
    await asyncio.sleep(0.1)
    assert poller.latest(UID) is None
    evaluator.status = 200
    await asyncio.sleep(0.15)
    assert poller.latest(UID).done == 1


async def test_one_that_falls_silent_and_one_that_speaks_again_is_told_once(poller, evaluator, monkeypatch):
    poller.watch(UID, ProgressSource(evaluator.url, "token", life="a"))
    await asyncio.sleep(0.2)
    evaluator.status = 503
    await asyncio.sleep(0.2)
    assert poller.changed == [UID] and not poller.is_silent(UID), "it may be busy for a moment"
    monkeypatch.setattr(progress_poller, "SILENT_SECONDS", 0.1)
    await asyncio.sleep(0.3)
    assert poller.changed == [UID, UID] and poller.is_silent(UID)
    evaluator.status = 200
    await asyncio.sleep(0.2)
    assert poller.changed == [UID, UID, UID] and not poller.is_silent(UID)


async def test_a_process_that_follows_a_silent_one_has_its_own_time(poller, evaluator, monkeypatch):
    monkeypatch.setattr(progress_poller, "SILENT_SECONDS", 0.2)
    evaluator.status = 503
    poller.watch(UID, ProgressSource(evaluator.url, "token", life="a"))
    await asyncio.sleep(0.5)
    assert poller.is_silent(UID)
    poller.watch(UID, ProgressSource(evaluator.url, "token", life="a"))
    assert poller.is_silent(UID)
    poller.watch(UID, ProgressSource(evaluator.url, "token", life="b"))
    assert not poller.is_silent(UID)


async def test_asking_ends_when_it_is_told_to(poller, evaluator):
    poller.watch(UID, ProgressSource(evaluator.url, "token"))
    await asyncio.sleep(0.1)
    poller.watch(UID, None)
    await asyncio.sleep(0.05)
    asked = len(evaluator.seen)
    await asyncio.sleep(0.1)
    assert len(evaluator.seen) == asked
    assert poller.latest(UID).done == 1
