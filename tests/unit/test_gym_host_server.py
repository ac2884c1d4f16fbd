from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from nhx_gym_operator.gym_host import server as server_module
from nhx_gym_operator.gym_host.server import HostServer

TOKEN = "a-token-of-this-job"


class ScriptedGym:
    """Stands in for Gym: results are set by the test."""

    rollout_deadline_s = 5.0
    heartbeat_s = 0.02
    max_response_bytes = 10_000

    def __init__(self) -> None:
        self.futures: list[concurrent.futures.Future[Any]] = []
        self.seen: list[list[dict[str, Any]]] = []
        self.answer: Any = None

    def submit(self, examples: list[dict[str, Any]]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.futures.append(future)
        self.seen.append(examples)
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer is not None:
            future.set_result(self.answer)
        return future

    aggregate = submit


class Host:
    def __init__(self) -> None:
        self.stopped = False
        self.gym = ScriptedGym()
        self.server = HostServer(TOKEN, on_shutdown=self._stop, mask=lambda text: text.replace("hush", "***"))
        self.url = ""

    def _stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def short_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "ENDING_NOTICE_S", 0.1)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    host.url = f"http://127.0.0.1:{await host.server.start('127.0.0.1', 0)}"
    host.server.gym = host.gym
    yield host
    await host.server.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}, connector=connector) as session:
        yield session


async def run(session: aiohttp.ClientSession, host: Host, body: Any = None) -> dict[str, Any]:
    async with session.post(host.url + "/rollouts/run", json=body or {"examples": [{"a": 1}]}) as response:
        assert response.status == 200
        return json.loads(await response.text())


async def test_results_come_back_after_whitespace_that_keeps_the_connection_alive(host: Host, session) -> None:
    async with session.post(host.url + "/rollouts/run", json={"examples": [{"a": 1}]}) as response:
        assert response.status == 200
        assert (await response.content.readany()).strip() == b""
        await asyncio.sleep(0.1)
        host.gym.futures[0].set_result([{"reward": 1.0}])
        body = await response.text()
    assert len(body) - len(body.lstrip()) >= 2
    assert json.loads(body) == {"results": [{"reward": 1.0}]}


async def test_a_failed_rollout_travels_in_the_body_with_its_secrets_masked(host: Host, session) -> None:
    host.gym.answer = RuntimeError("agent said hush")
    assert await run(session, host) == {"error": {"code": "internal", "message": "RuntimeError: agent said ***"}}


async def test_a_rollout_past_the_deadline_is_abandoned_and_said_to_be(host: Host, session) -> None:
    host.gym.rollout_deadline_s = 0.05
    answer = await run(session, host)
    assert answer["error"]["code"] == "deadline_exceeded"
    assert host.gym.futures[0].cancelled()


async def test_a_caller_that_goes_away_cancels_its_rollouts(host: Host, session) -> None:
    response = await session.post(host.url + "/rollouts/run", json={"examples": [{}]})
    response.close()
    for _ in range(100):
        if host.gym.futures[0].cancelled():
            return
        await asyncio.sleep(0.02)
    pytest.fail("the rollout went on")


async def test_results_that_are_too_large_are_an_error_and_not_a_broken_stream(host: Host, session) -> None:
    host.gym.answer = [{"text": "x" * 20_000}]
    assert (await run(session, host))["error"]["code"] == "payload_too_large"


async def test_results_that_are_no_json_are_an_error(host: Host, session) -> None:
    host.gym.answer = [{"value": object()}]
    assert "not JSON-serializable" in (await run(session, host))["error"]["message"]


@pytest.mark.parametrize("body", ["nonsense", '{"examples": {}}', '{"examples": [1]}', "[]"])
async def test_a_request_that_makes_no_sense_is_refused_before_it_costs_anything(host: Host, session, body) -> None:
    async with session.post(host.url + "/rollouts/run", data=body) as response:
        assert response.status == 400
    assert host.gym.seen == []


@pytest.mark.parametrize("path", ["/rollouts/run", "/aggregate_metrics", "/shutdown"])
async def test_every_route_but_health_wants_the_hosts_token(host: Host, path: str) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer guess"}) as stranger:
        async with stranger.post(host.url + path, json={}) as response:
            assert response.status == 401
        async with stranger.get(host.url + "/health") as response:
            assert response.status == 200
    assert not host.stopped


async def test_a_host_that_is_not_ready_says_why(host: Host, session) -> None:
    host.server.gym = None
    async with session.get(host.url + "/health") as response:
        assert (response.status, await response.json()) == (503, {"status": "starting"})
    host.server.failure = "out of memory"
    async with session.post(host.url + "/rollouts/run", json={"examples": []}) as response:
        assert response.status == 503
        assert (await response.json())["error"] == {"code": "bootstrap_failed", "message": "out of memory"}


async def test_aggregates_are_the_agent_servers_own_answer(host: Host, session) -> None:
    host.gym.answer = {"agent_metrics": {"pass@1/accuracy": 80.0}}
    async with session.post(host.url + "/aggregate_metrics", json={"verify_responses": [{"reward": 1}]}) as response:
        assert await response.json() == host.gym.answer
    assert host.gym.seen == [[{"reward": 1}]]


async def test_a_failed_aggregation_is_an_error_status(host: Host, session) -> None:
    host.gym.answer = RuntimeError("no")
    async with session.post(host.url + "/aggregate_metrics", json={"verify_responses": []}) as response:
        assert (response.status, (await response.json())["error"]["message"]) == (502, "RuntimeError: no")


async def test_shutdown_is_asked_for_by_the_evaluator(host: Host, session) -> None:
    async with session.post(host.url + "/shutdown") as response:
        assert response.status == 200
    assert host.stopped


async def test_256_connections_at_once_are_all_served(host: Host, session) -> None:
    host.gym.answer = [{"reward": 0.5}]
    answers = await asyncio.gather(*[run(session, host) for _ in range(256)])
    assert all(answer == {"results": [{"reward": 0.5}]} for answer in answers)


async def test_the_backlog_holds_256_connections_while_the_loop_is_busy(host: Host) -> None:
    """The kernel takes connections that nobody accepts yet: with a backlog of 5 most would not be made."""
    address = ("127.0.0.1", int(host.url.rpartition(":")[2]))
    connections = []
    try:
        for _ in range(256):
            connections.append(socket.create_connection(address, timeout=1))  # blocks the loop on purpose
    finally:
        for connection in connections:
            connection.close()
    assert len(connections) == 256


async def test_a_rollout_that_fails_since_its_host_ends_is_broken_off_and_not_answered(host: Host, session) -> None:
    async with session.post(host.url + "/rollouts/run", json={"examples": [{"a": 1}]}) as response:
        await response.content.readany()
        host.gym.futures[0].set_exception(RuntimeError("the agent is gone"))
        await asyncio.sleep(0.02)
        host.server.ending.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_host_that_ends_takes_no_more_rollouts(host: Host, session) -> None:
    host.server.ending.set()
    async with session.post(host.url + "/rollouts/run", json={"examples": [{"a": 1}]}) as response:
        assert response.status == 503
    assert host.gym.seen == []
