"""A model's endpoint is looked at before Gym is up: what seems wrong is said at once, and ends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nhx_gym_operator.evaluator.gateway import endpoint
from unit.evaluator_fakes import KEY
from unit.test_gateway_calls import gate

FIELD = "spec.models[name=policy]"


def answering(status: int, text: str = "", **headers: str) -> Callable[[web.Request, Any], Awaitable[web.Response]]:
    async def answer(request: web.Request, _: Any) -> web.Response:
        said = text.format(authorization=request.headers.get("Authorization"))
        return web.json_response({"error": {"message": said}}, status=status, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("listing", "reason", "words"),
    [
        (answering(401, "no such key"), "KeyRefused", f"no such key): change the key in the Secret of {FIELD}.apiKey"),
        (answering(403), "KeyRefused", f"change the key in the Secret of {FIELD}.apiKey"),
        (answering(404), "EndpointNotFound", "knows no /v1/models (HTTP 404 from the model server: "),
        (answering(308, Location="https://x/v1"), "EndpointNotFound", f"set {FIELD}.baseUrl to where the model is"),
    ],
)  # fmt: skip
async def test_what_the_first_look_finds_is_said_with_model_url_and_field(
    tmp_path: Path, listing: Any, reason: str, words: str
) -> None:
    async with gate(tmp_path) as g:
        g.model.listing = listing
        await g.gateway.look_at_endpoints()
        (notice,) = g.gateway.notices()
        url = g.gateway._models["policy"].endpoint.route.base_url
    assert (notice.type, notice.reason) == ("ModelInDoubt", reason)
    assert f"model policy's endpoint {url} " in notice.message and words in notice.message
    assert f"{FIELD}." in notice.message


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://127.0.0.1:9/v1", "the connection was refused"), ("http://nobody.invalid/v1", "no such host is known")],
)
async def test_an_endpoint_out_of_reach_is_said_with_the_reason(tmp_path: Path, url: str, words: str) -> None:
    async with gate(tmp_path, url=url) as g:
        await g.gateway.look_at_endpoints()
        (notice,) = g.gateway.notices()
    assert notice.reason == "EndpointUnreachable"
    assert notice.message == (
        f"model policy's endpoint {url} is out of reach ({words}"
        + (" here" if "host" in words else "")
        + f"): change {FIELD}.baseUrl, unless its server is still starting"
    )


async def test_a_server_that_does_not_answer_holds_nobody_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: web.Request, __: Any) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(endpoint, "LOOK_SECONDS", 0.2)
    async with gate(tmp_path) as g:
        g.model.listing = never
        async with asyncio.timeout(20):
            await g.gateway.look_at_endpoints()
        (notice,) = g.gateway.notices()
    assert "it did not answer in time" in notice.message


async def test_a_model_that_wants_a_key_of_a_job_without_one_is_given_the_field_to_set(tmp_path: Path) -> None:
    async with gate(tmp_path, has_api_key=False) as g:
        g.model.listing = answering(401)
        await g.gateway.look_at_endpoints()
        (notice,) = g.gateway.notices()
        assert "Authorization" not in g.model.looks[0].headers
    assert "wants a key" in notice.message and notice.message.endswith(f"set {FIELD}.apiKey")


async def test_the_key_is_sent_and_never_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with gate(tmp_path) as g:
        g.model.listing = answering(401, "{authorization} is no key of ours")
        await g.gateway.look_at_endpoints()
        (notice,) = g.gateway.notices()
        assert g.model.looks[0].headers["Authorization"] == f"Bearer {KEY}"
    assert "is no key of ours" in notice.message and "is no key of ours" in caplog.text
    assert KEY not in notice.message and KEY not in caplog.text


@pytest.mark.parametrize("status", [200, 429, 500, 503])
async def test_a_server_that_answers_or_is_not_ready_is_in_no_doubt(tmp_path: Path, status: int) -> None:
    async with gate(tmp_path) as g:
        g.model.listing = answering(status)
        await g.gateway.look_at_endpoints()
        assert g.gateway.notices() == [] and len(g.model.looks) == 1


async def test_a_doubt_is_settled_by_the_first_call_that_is_answered_and_by_no_other(tmp_path: Path) -> None:
    async def refuse(_: web.Request, __: Any) -> web.Response:
        return web.json_response({"error": "no"}, status=401)

    async with gate(tmp_path) as g:
        g.model.listing = answering(404)
        await g.gateway.look_at_endpoints()
        g.model.answer = refuse
        await g.call()
        assert len(g.gateway.notices()) == 1
        g.model.answer = None
        assert (await g.call())[0] == 200
        assert g.gateway.notices() == []


async def test_a_look_is_no_call_of_the_job(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        await g.gateway.look_at_endpoints()
        assert g.gateway.usage()["policy"].calls == 0 and g.model.requests == []
        assert g.gateway.dead_models() == {}
