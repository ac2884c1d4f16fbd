"""Where no model is: a job's baseUrl leads to no metadata server and to no link, whatever its host is called."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from nhx_gym_operator.api.wire.reports import FailureClass
from nhx_gym_operator.evaluator import addresses
from nhx_gym_operator.evaluator.gateway import endpoint
from nhx_gym_operator.evaluator.http_server import client
from unit.evaluator_fakes import KEY, FakeModel, route, row, serving, world
from unit.test_evaluator_run import finish

FIELD = "spec.models[name=policy].baseUrl"
METADATA = "169.254.169.254"


async def outcome_of(tmp_path: Path, url: str) -> Any:
    async with world(tmp_path) as w:
        plan = w.plan([row(0)]).model_copy(update={"models": [route(url)]})
        # No gym host ever comes: the job ends before it waits for one.
        return await asyncio.wait_for(w.evaluation(plan).run(), 60)


@pytest.mark.parametrize(
    "host",
    [METADATA, "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "100.100.100.200", "169.254.1.2",
     "[fe80::1]", "0.0.0.0", "224.0.0.1", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376"],
)  # fmt: skip
async def test_an_address_that_is_no_models_ends_the_job_at_once_with_field_and_address(
    tmp_path: Path, host: str
) -> None:
    outcome = await outcome_of(tmp_path, f"http://{host}/v1")
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "ModelUnavailable", FailureClass.MODEL)
    for words in ("model policy answered no call", "link-local or a metadata server", f"change {FIELD}"):
        assert words in outcome.message
    assert KEY not in outcome.message


async def test_a_name_of_such_an_address_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(host: str, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (METADATA, 0))]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", names)
    outcome = await outcome_of(tmp_path, "http://metadata.internal/v1")
    assert outcome.reason == "ModelUnavailable"
    assert f"metadata.internal is the address {METADATA}" in outcome.message


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name means a metadata server by the time that it is connected to, and did not before."""

    async def resolve(self: Any, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        return [{"hostname": host, "host": METADATA, "port": port, "family": 2, "proto": 0, "flags": 0}]

    monkeypatch.setattr(endpoint, "check_host", lambda *_, **__: None)
    monkeypatch.setattr(addresses.ThreadedResolver, "resolve", resolve)


@pytest.mark.usefixtures("turned")
async def test_a_name_that_means_something_else_when_it_is_first_looked_at_ends_the_job(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, "http://model.team:8000/v1")
    assert (outcome.state, outcome.reason) == ("Failed", "ModelUnavailable")
    assert f"model.team is the address {METADATA}" in outcome.message and FIELD in outcome.message


@pytest.mark.usefixtures("turned")
async def test_a_name_that_means_something_else_when_it_is_called_is_not_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked where it is connected to, and not only before."""

    async def no_look(_: Any) -> None:
        return None

    monkeypatch.setattr(endpoint.Endpoint, "look", no_look)
    async with world(tmp_path) as w:
        plan = w.plan([row(0)]).model_copy(update={"models": [route("http://model.team:8000/v1", max_retries=3)]})
        outcome = await finish(w.evaluation(plan), *w.hosts)
    assert (outcome.state, outcome.coverage) == ("Failed", 0.0)
    assert f"model.team is the address {METADATA}" in outcome.message and FIELD in outcome.message


@pytest.mark.parametrize("url", ["http://a..b/v1", "http://[::1/v1", "http://model:99999/v1"])
async def test_what_is_no_address_is_named_by_its_field(tmp_path: Path, url: str) -> None:
    outcome = await outcome_of(tmp_path, url)
    assert outcome.reason == "ModelUnavailable" and FIELD in outcome.message


async def test_a_model_beside_its_caller_is_called_but_no_host_is_by_that_session() -> None:
    async with serving(FakeModel().app()) as url, client() as session:
        async with session.post(f"{url}/v1/chat/completions".replace("127.0.0.1", "localhost"), json={}) as answer:
            assert answer.status in (200, 500)
        with pytest.raises(addresses.AddressRefused):
            addresses.check("localhost", ["127.0.0.1"])


def test_private_addresses_are_a_clusters_own_and_taken() -> None:
    for address in ("10.96.0.10", "172.16.1.1", "192.168.1.1", "198.18.0.1", "fd12::1", "100.64.0.1", "8.8.8.8"):
        addresses.check("model.team", [address], loopback=True)
        addresses.check("files.team", [address])


def test_loopback_is_a_models_alone() -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        addresses.check("localhost", [address], loopback=True)
        with pytest.raises(addresses.AddressRefused, match="loopback"):
            addresses.check("localhost", [address])


async def test_the_session_for_models_never_resolves_to_a_refused_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(self: Any, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        return [{"hostname": host, "host": "fe80::1", "port": port, "family": 10, "proto": 0, "flags": 0}]

    monkeypatch.setattr(addresses.ThreadedResolver, "resolve", resolve)
    async with client() as session:
        with pytest.raises((addresses.AddressRefused, aiohttp.ClientError)) as refused:
            await session.get("http://neighbour/")
    assert isinstance(refused.value, addresses.AddressRefused)
