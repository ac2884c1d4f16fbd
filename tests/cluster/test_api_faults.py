"""An API server that is slow, refuses, forgets or is away: no job is missed, nothing is asked in a hot loop, and an
operator that sees nothing says so."""

import asyncio
import socket
import time

import aiohttp
import pytest

from cluster.control_plane import operators_kubeconfig
from cluster.faulty_api import Answer, faulty_api
from cluster.world import DEFINITIONS
from nhx_gym_operator.controller import caches
from nhx_gym_operator.controller.kube import JOBS, PODS
from support.controller_values import outcome

PAIR = ("mcqa-evaluator-1", "mcqa-host-0-1")
KINDS = len(caches.KINDS)


@pytest.fixture
def api(kubeconfig, tmp_path):
    with faulty_api(operators_kubeconfig(kubeconfig), tmp_path) as (proxy, path):
        proxy.kubeconfig = path
        yield proxy


@pytest.fixture
def health_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def operator(operating, api, health_port):
    with operating(through=api.kubeconfig, health_port=health_port) as process:
        yield process


@pytest.fixture
def probe(health_port):
    async def ask(path="/healthz"):
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{health_port}{path}") as answer:
            return answer.status, await answer.text()

    return ask


async def counted(api, seconds):
    """What is asked within so many seconds."""
    first = len(api.asked)
    await asyncio.sleep(seconds)
    return api.asked[first:]


def watches(asked):
    return [entry for entry in asked if entry.watches]


def writes(asked):
    return [entry for entry in asked if entry.is_write]


def only(method, answer, path=""):
    return lambda asked: answer if asked.method == method and path in asked.path else None


async def test_a_quiet_cluster_is_asked_next_to_nothing(world, api, operator):
    await world.apply_job()
    await world.until_pods(*PAIR)
    await world.until_condition("Running", "PodsCreated")
    told = {condition["reason"] for condition in (await world.job())["status"]["conditions"]}

    async def all_told():
        # Events follow the status that they tell of.
        return told <= {event["reason"] for event in await world.events()}

    await world.until(all_told, f"events tell of {told}", world.events)
    asked = await counted(api, 10)
    assert len(asked) <= KINDS and not writes(asked), asked


async def test_watches_that_are_dropped_are_taken_up_again(world, api, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    began = len(api.asked)
    for _ in range(3):
        api.drop_watches()
        await asyncio.sleep(1)
    await world.report_outcome(outcome())
    await world.until_phase("Succeeded")
    again = api.asked[began:]
    assert KINDS <= len(watches(again)) <= 8 * KINDS


async def test_what_happened_before_an_expired_watch_is_found_in_the_list(world, api, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    api.faults.expired = True
    api.drop_watches()
    await asyncio.sleep(1)
    await world.kill("mcqa-evaluator-1")
    began = time.monotonic()
    asked = await counted(api, 5)
    api.faults.expired = False
    await world.until_condition("Running", "EvaluatorLost")
    assert time.monotonic() - began < 60
    # Of each kind a list and a watch a second, and the lists that follow one of the watch's.
    assert len(asked) <= 3 * KINDS * 6, len(asked)


@pytest.mark.parametrize(
    "answer",
    [Answer(429, "TooManyRequests", {"Retry-After": "1"}), Answer(500, "InternalError"), Answer(503, "Unavailable")],
    ids=lambda answer: str(answer.status),
)
async def test_what_is_refused_for_a_while_is_asked_for_again_and_not_often(world, api, operator, answer):
    api.faults.answer = lambda _: answer
    api.drop_watches()
    await world.apply_job()
    asked = await counted(api, 8)
    assert len(asked) <= 12 * KINDS, len(asked)
    assert await world.names(PODS) == []
    api.faults.answer = lambda _: None
    await world.until_pods(*PAIR)
    await world.until_condition("Running", "PodsCreated")


async def test_writes_that_are_refused_for_a_while_are_tried_again_in_growing_pauses(world, api, operator):
    api.faults.answer = lambda asked: Answer(500, "InternalError") if asked.is_write else None
    await world.apply_job()
    asked = await counted(api, 8)
    assert 1 <= len(writes(asked)) <= 8, writes(asked)
    api.faults.answer = lambda _: None
    await world.until_condition("Running", "PodsCreated")
    assert (await world.job())["status"]["attempt"] == 1


async def test_conflicts_are_tried_again_from_what_is_there_and_in_growing_pauses(world, api, operator):
    api.faults.answer = only("PATCH", Answer(409, "Conflict"), "/status")
    await world.apply_job()
    asked = [entry for entry in await counted(api, 8) if entry.path.endswith("/status")]
    assert 2 <= len(asked) <= 8, asked
    api.faults.answer = lambda _: None
    await world.until_condition("Running", "PodsCreated")
    assert sorted(await world.names(PODS)) == sorted(PAIR)


async def test_an_api_server_that_takes_seconds_for_each_answer_gets_the_job_through(world, api, operator):
    api.faults.seconds = 2.0
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    await world.report_outcome(outcome())
    await world.until_phase("Succeeded")
    assert sorted(await world.names(PODS)) == sorted(PAIR)


async def test_a_blind_operator_is_red_and_alive_asks_seldom_and_misses_nothing(
    world, api, operator, probe, monkeypatch
):
    monkeypatch.setattr(caches, "BLIND_SECONDS", 4.0)
    monkeypatch.setattr(caches, "VERIFY_SECONDS", 1.0)
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")

    async def red():
        status, words = await probe()
        return words if status == 503 else None

    async def green():
        return (await probe())[0] == 200

    await world.until(green, "it is green")
    api.go_away()
    await world.apply_job("second")
    await world.report_outcome(outcome())
    words = await world.until(red, "it is red")
    assert "were last listed" in words
    assert await probe("/livez") == (200, "ok")
    asked = await counted(api, 10)
    # Little more than one a second of each kind in the first seconds, and less from then on.
    assert len(asked) <= 13 * KINDS, len(asked)
    api.come_back()
    back = time.monotonic()
    await world.until(green, "it is green again")
    await world.until_phase("Succeeded")
    await world.until_condition("Running", "PodsCreated", "second")
    assert time.monotonic() - back < 60


async def test_a_status_that_the_definition_does_not_take_is_written_without_that_and_told(world, operator):
    """As after an upgrade of the operator without its CRDs."""
    name = f"{JOBS.plural}.{JOBS.group}"
    definition = await world.api.get(DEFINITIONS, None, name)
    model = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][
        "model"
    ]
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/model/maxLength"
    await world.replace_in_definition(name, path, 3)
    try:
        await world.apply_job()
        job = await world.until_condition("Running", "PodsCreated")
        assert "model" not in job["status"]
        (told,) = [event for event in await world.events() if event["reason"] == "StatusRefused"]
        assert "status.model" in told["message"] and "crds/" in told["message"]
    finally:
        await world.replace_in_definition(name, path, model["maxLength"])
