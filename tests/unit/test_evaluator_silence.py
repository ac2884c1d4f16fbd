"""What an evaluator says while nothing comes: who does not answer, since when, in which words, and when that ends.

The model servers and the host are real ones, on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nhx_gym_operator.evaluator import collection, hosts
from nhx_gym_operator.evaluator.run import Evaluation
from support import stuck
from unit.evaluator_fakes import FakeModel, evaluator_url, route, row, target, world

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
HALF = b'data: {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "4'


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "QUIET_S", 0.3)
    monkeypatch.setattr(hosts, "SILENT_S", 0.3)
    monkeypatch.setattr(hosts, "PROBE_READY_EVERY_S", 0.1)
    monkeypatch.setattr(hosts, "PROBE_TIMEOUT_S", 0.2)


async def hangs(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(600)
    return web.Response()


def refuses(status: int):
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"no, {status}"}}, status=status)

    return answer


async def babbles(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(text="<html>garbage</html>", content_type="application/json")


async def stops_half_way(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(HALF)
    await asyncio.sleep(600)
    return response


@contextlib.asynccontextmanager
async def collecting(tmp_path: Path, answer: Any = None, **changes: Any):
    """An evaluation whose only host has registered, and that host; ended at the end of the block."""
    async with world(tmp_path, model=FakeModel(answer=answer)) as w:
        plan = w.plan([row(n) for n in range(3)], target=target(concurrency=1, num_repeats=1))
        models = [route(w.model.url, timeout_seconds=30.0, max_retries=9)]
        evaluation = w.evaluation(plan.model_copy(update={"idle_s": 900.0, "models": models} | changes))
        work = asyncio.create_task(evaluation.run())
        host = w.hosts[0]
        host.evaluator = await evaluator_url(evaluation)
        await host.register()
        try:
            yield evaluation, host
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def said(evaluation: Evaluation, words: str) -> str:
    """What the evaluation says, once it has these words (a regular expression)."""
    last = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30):
            while not re.search(words, last := evaluation.progress.snapshot().message):
                await asyncio.sleep(0.05)
            return last
    raise AssertionError(f"it says {last!r}")


@pytest.mark.parametrize(
    ("state", "answer", "words"),
    [
        ("The model hangs", hangs, ""),
        ("The model answers 429 for ever", refuses(429), ": HTTP 429 from the model server: no, 429"),
        ("The model answers 500 for ever", refuses(500), ": HTTP 500 from the model server: no, 500"),
        ("The model answers garbage", babbles, ": the model server's answer is not JSON: <html>garbage</html>"),
        ("The model sends half a stream for ever", stops_half_way, ""),
    ],
)
async def test_a_model_that_does_not_answer_is_named_with_its_words_and_both_bounds(tmp_path, state, answer, words):
    async with collecting(tmp_path, answer) as (evaluation, _):
        message = await said(evaluation, f"model policy has answered no call since {TIME}{re.escape(words)}")
        assert "a call may take spec.models[name=policy].timeoutSeconds = 30 s" in message
        assert re.search(rf"if nothing comes, collection ends at {TIME} \(spec.idleTimeoutSeconds\)$", message)
        stuck.assert_said(state, message)


async def test_a_sooner_end_of_the_collection_is_the_one_that_is_told(tmp_path):
    sooner = target(concurrency=1, num_repeats=1, collection_timeout_s=60.0)
    async with collecting(tmp_path, hangs, target=sooner) as (evaluation, _):
        await said(evaluation, r"\(spec.target.gym.collectionTimeoutSeconds\)$")


async def test_a_model_that_answers_again_is_not_spoken_of_any_more(tmp_path):
    turns = iter([refuses(500)] * 2)

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        later = next(turns, None)
        return await (later or hangs)(request, body)

    async with collecting(tmp_path, answer) as (evaluation, _):
        await said(evaluation, "answered no call")
        evaluation._report.server.gateway._models["policy"].answered({})
        assert "answered no call" not in evaluation.progress.snapshot().message


async def test_an_environment_that_works_without_a_model_is_said_to_give_no_sign(tmp_path):
    async with collecting(tmp_path) as (evaluation, host):
        host.delay_s = 600.0
        words = f"since {TIME} no rollout has ended and no model has answered; if nothing comes"
        stuck.assert_said("Nothing comes, and no model is asked", await said(evaluation, words))


async def test_a_host_that_keeps_its_socket_and_answers_nothing_is_named(tmp_path):
    async with collecting(tmp_path, hangs) as (evaluation, host):
        await said(evaluation, "answered no call")
        host.healthy = False
        message = await said(evaluation, f"gym host 0 has not answered since {TIME}")
        stuck.assert_said("A gym host answers no more and keeps its sockets", message)
        host.healthy = True
        await said(evaluation, "answered no call")


async def test_a_host_is_waited_for_until_a_moment_that_is_told(tmp_path):
    async with world(tmp_path) as w:
        evaluation = w.evaluation(w.plan([row(1)]))
        work = asyncio.create_task(evaluation.run())
        await said(evaluation, f"waiting for gym host 0 to register, until {TIME} at most")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_a_job_that_gets_on_says_nothing(tmp_path):
    async with collecting(tmp_path) as (evaluation, _):
        while evaluation.progress.done < 3:
            assert "since" not in evaluation.progress.snapshot().message
            await asyncio.sleep(0.02)
