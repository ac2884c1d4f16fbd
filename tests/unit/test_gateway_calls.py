"""The model gateway against a model server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nhx_gym_operator.api.limits import users_field
from nhx_gym_operator.api.wire.endpoints import ModelUsage
from nhx_gym_operator.api.wire.plans import Bound
from nhx_gym_operator.api.wire.reports import FailureClass
from nhx_gym_operator.evaluator import metering
from nhx_gym_operator.evaluator.budget import Budget
from nhx_gym_operator.evaluator.gateway import ModelGateway, answers
from nhx_gym_operator.evaluator.gateway.refusals import MAX_WORDS
from nhx_gym_operator.evaluator.http_api import Backends, make_app
from nhx_gym_operator.evaluator.http_api import serving as serving_as_an_evaluator
from nhx_gym_operator.evaluator.metering import CallCost, Counted, End, usage_of
from nhx_gym_operator.evaluator.model_keys import ModelKeys
from nhx_gym_operator.evaluator.progress import ProgressState
from nhx_gym_operator.evaluator.rollout_calls import RolloutCalls
from unit.evaluator_fakes import KEY, MODEL, TOKENS, Answer, FakeModel, chat, paths_in, route, serving

GYM_REPEATS = {429, 500, 502, 503, 504, 520}
"""`RETRY_ERROR_CODES` of nemo_gym 0.5.0: what must never be answered."""
CALL = {"model": MODEL, "messages": [{"role": "user", "content": "question 1"}]}


@dataclass
class Gate:
    """A gateway with one model behind it."""

    model: FakeModel
    gateway: ModelGateway
    calls: RolloutCalls
    url: str
    client: aiohttp.ClientSession
    key_file: Path

    async def call(self, path: str = "chat/completions", body: Any = CALL, **more: Any) -> tuple[int, dict[str, Any]]:
        async with self.client.post(f"{self.url}/models/policy/v1/{path}", json=body, **more) as answer:
            return answer.status, await answer.json(content_type=None)

    @property
    def usage(self) -> dict[str, int]:
        return self.gateway.usage()["policy"].model_dump()


@contextlib.asynccontextmanager
async def gate(
    directory: Path,
    answer: Answer | None = None,
    *,
    bounds: Mapping[str, int] | None = None,
    counted: Mapping[str, Counted] | None = None,
    **settings: Any,
) -> AsyncIterator[Gate]:
    model = FakeModel(answer=answer)
    paths = paths_in(directory)
    async with contextlib.AsyncExitStack() as stack:
        url = f"{await stack.enter_async_context(serving(model.app()))}/v1"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        calls = RolloutCalls()
        gateway = ModelGateway(
            [route(**{"url": url, **settings})],
            ModelKeys(paths.model_keys),
            session,
            calls,
            budget=Budget(
                **{name: Bound(value=most, setting=users_field(name)) for name, most in (bounds or {}).items()}
            ),
            counted=counted or {},
        )
        app = make_app(Backends(TOKENS, gateway, ProgressState(1)))
        address = await stack.enter_async_context(serving(app))
        headers = {"Authorization": f"Bearer {TOKENS.hosts[0]}"}
        client = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
        yield Gate(model, gateway, calls, address, client, paths.model_keys / "policy" / "api-key")


def refusing(status: int, message: str = "no", headers: dict[str, str] | None = None) -> Answer:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": message}}, status=status, headers=headers)

    return answer


def in_turn(*statuses: int, headers: dict[str, str] | None = None) -> Answer:
    """Refuses with these statuses, then answers."""
    left = list(statuses)

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if left:
            return await refusing(left.pop(0), headers=headers)(request, body)
        return web.json_response(chat("1"))

    return answer


def streaming(*chunks: bytes, clean: bool = True) -> Answer:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.01)
        if not clean:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


async def test_a_call_goes_out_with_the_models_key_and_comes_back_unchanged(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        status, answer = await g.call()
        sent = g.model.requests[0]
    assert (status, answer) == (200, chat("1"))
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["Authorization"] == f"Bearer {KEY}"
    assert g.model.bodies == [CALL]
    assert (g.usage["calls"], g.usage["input_tokens"], g.usage["output_tokens"]) == (1, 100, 20)


async def test_a_model_server_is_told_of_json_whatever_a_caller_calls_it(tmp_path: Path) -> None:
    """LiteLLM's proxy would read a form out of what was judged as JSON, and another model in it."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    async with gate(tmp_path) as g:
        await g.call(body=CALL | {"user": "&model=another&input=question 1&"}, headers=form)
        assert g.model.requests[0].headers["Content-Type"] == "application/json"


async def test_responses_are_metered_in_their_own_words(tmp_path: Path) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"object": "response", "usage": {"input_tokens": 7, "output_tokens": 3}})

    async with gate(tmp_path, answer) as g:
        await g.call("responses", {"model": MODEL, "input": "x"})
    assert (g.usage["input_tokens"], g.usage["output_tokens"], g.usage["total_tokens"]) == (7, 3, 10)


def test_latency_is_that_of_answered_calls_and_stays_over_attempts() -> None:
    counted = Counted()
    for number in range(1000):
        counted.add(CallCost(End.ANSWERED, (1, 1, 2), seconds=0.5 if number < 900 else 20.0))
    counted.add(CallCost(End.FAILED, seconds=600.0))
    counted.add(CallCost(End.ABORTED, seconds=600.0))
    kept = Counted(**json.loads(counted.model_dump_json(exclude_defaults=True)))
    kept.add(CallCost(End.ANSWERED, seconds=42.0))
    usage = kept.shown()
    latency = usage.latency_seconds
    assert latency is not None and (usage.calls, usage.seconds) == (1001, 3692.0)
    assert latency.mean == pytest.approx((900 * 0.5 + 100 * 20 + 42) / 1001, abs=0.001)
    assert latency.p50 == pytest.approx(0.5, rel=0.1) and latency.p99 == pytest.approx(20.0, rel=0.1)
    assert latency.max == 42.0


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.001, 0.3, 1.0, 599.9])
def test_of_one_call_every_number_is_what_it_took(seconds: float) -> None:
    counted = Counted()
    counted.add(CallCost(End.ANSWERED, seconds=seconds))
    latency = counted.shown().latency_seconds
    assert latency is not None
    assert [latency.p50, latency.p99] == pytest.approx([latency.max] * 2, rel=0.1)
    assert latency.mean == latency.max == round(seconds, 3)


async def test_an_answer_without_usage_is_counted_as_unmetered(tmp_path: Path) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(chat("1", usage=False))

    async with gate(tmp_path, answer) as g:
        await g.call()
    assert (g.usage["calls"], g.usage["unmetered_calls"], g.usage["total_tokens"]) == (1, 1, 0)


async def test_a_rotated_key_is_used_by_the_next_call_and_its_newline_is_not_sent(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.key_file.write_text(" first\r\n")
        await g.call()
        g.key_file.write_text("second\n")
        await g.call()
    assert [sent.headers["Authorization"] for sent in g.model.requests] == ["Bearer first", "Bearer second"]


async def test_a_key_with_an_inner_newline_is_refused_without_being_shown(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.key_file.write_text("sk-one\nsk-two")
        status, answer = await g.call()
    assert status == 424
    assert "apiKey.secretKeyRef" in answer["error"]["message"] and "sk-one" not in json.dumps(answer)
    assert g.model.requests == []


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/models/other/v1/chat/completions", 404),
        ("POST", "/models/policy/v1/embeddings", 404),
        ("POST", "/models/policy/v1/chat/completions/..%2f..%2fadmin", 404),
        ("GET", "/models/policy/v1/chat/completions", 405),
        ("DELETE", "/models/policy/v1/models", 405),
        ("GET", "/models/policy/v1/models", 200),
    ],
)
async def test_only_declared_models_methods_and_paths_exist(
    tmp_path: Path, method: str, path: str, expected: int
) -> None:
    async with gate(tmp_path) as g, g.client.request(method, g.url + path, json=CALL) as answer:
        assert answer.status == expected
    assert g.model.requests == []


@pytest.mark.parametrize("model", [{"model": "org/dear-one"}, {"model": None}, {}], ids=["another", "null", "none"])
async def test_a_model_that_the_job_does_not_declare_is_not_called_with_its_key(
    tmp_path: Path, model: dict[str, str | None]
) -> None:
    async with gate(tmp_path) as g:
        status, answer = await g.call(body={"messages": CALL["messages"], **model})
    assert (status, answer["error"]["code"]) == (422, "model_not_declared")
    assert g.model.requests == []


@pytest.mark.parametrize(
    "choice",
    [
        {"models": ["org/dear-one"]},
        {"Models": ["org/dear-one"]},
        {"fallbacks": [{"model": "org/dear-one"}]},
        {"context_window_fallbacks": []},
        {"model_list": []},
        {"user_config": {}},
        {"api_base": "http://elsewhere/v1"},
        {"extra_body": {"models": ["org/dear-one"]}},
        {"extra_body": {"extra_body": {"model": "org/dear-one"}}},
    ],
)
async def test_a_call_that_offers_the_server_other_models_is_not_made(tmp_path: Path, choice: dict[str, Any]) -> None:
    async with gate(tmp_path) as g:
        status, answer = await g.call(body={**CALL, **choice})
    assert (status, answer["error"]["code"]) == (422, "model_not_declared")
    assert "would let the server choose a model" in answer["error"]["message"]
    assert g.model.requests == []


def nested(levels: int, name: str, innermost: str) -> str:
    return f'{{"{name}":' * levels + innermost + "}" * levels


async def test_no_depth_of_a_request_is_an_error_of_the_gateways(tmp_path: Path) -> None:
    """500 is what Gym repeats."""
    async with gate(tmp_path) as g:
        url = f"{g.url}/models/policy/v1/chat/completions"
        for levels in (1500, 200_000):
            for body, statuses in (
                (nested(levels, "extra_body", '{"models":[]}'), {422}),
                (nested(levels, "model", "1"), {422}),
                (json.dumps(CALL)[:-1] + f',"reasoning":{nested(levels, "a", "1")}}}', {200, 422}),
            ):
                async with g.client.post(url, data=body) as answer:
                    assert answer.status in statuses, body[:20]


async def test_what_a_call_draws_its_answer_by_is_noted_as_it_was_sent(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        for effort in ("low", "low", "high"):
            drawn = {"temperature": 0.5, "seed": 7, "reasoning": {"effort": effort}, "stop": ["a", "b"]}
            await g.call(body=CALL | drawn)
        facts = g.gateway.facts()["policy"].shown()
    assert facts["sampling"] == {
        "temperature": {"0.5": 3},
        "seed": {"7": 3},
        "stop": {'["a", "b"]': 3},
        "reasoning": {'{"effort": "low"}': 2, '{"effort": "high"}': 1},
    }
    assert facts["answeredAs"] == {MODEL: 3}


async def test_an_extra_body_that_chooses_nothing_passes(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        status, _ = await g.call(body={**CALL, "extra_body": {"top_k": 3}})
    assert status == 200


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_repeated(tmp_path: Path, status: int) -> None:
    async with gate(tmp_path, in_turn(status), max_retries=1) as g:
        answered, _ = await g.call()
    assert (answered, len(g.model.requests)) == (200, 2)
    assert (g.usage["calls"], g.usage["failed_calls"]) == (1, 0)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 520])
async def test_a_call_that_is_given_up_gets_an_answer_that_gym_does_not_repeat(tmp_path: Path, status: int) -> None:
    async with gate(tmp_path, refusing(status, "overloaded"), max_retries=1) as g:
        answered, answer = await g.call()
        behind = g.calls.behind(f"500 b'{json.dumps(answer)}'")
    assert answered == 424 and answered not in GYM_REPEATS
    assert "overloaded" in answer["error"]["message"] and "2 tries" in answer["error"]["message"]
    assert len(g.model.requests) == 2
    assert behind is not None and behind.failure_class == "transient"
    assert g.usage["failed_calls"] == 1


async def test_retry_after_is_honoured(tmp_path: Path) -> None:
    async with gate(tmp_path, in_turn(429, headers={"Retry-After": "1"}), max_retries=1) as g:
        started = time.monotonic()
        status, _ = await g.call()
    assert status == 200
    assert time.monotonic() - started >= 1.0


async def test_a_retry_that_would_come_too_late_is_not_waited_for(tmp_path: Path) -> None:
    never = refusing(429, headers={"Retry-After": "3600"})
    async with gate(tmp_path, never, max_retries=5, timeout_seconds=600) as g:
        started = time.monotonic()
        status, answer = await g.call()
    assert (status, len(g.model.requests)) == (424, 1)
    assert time.monotonic() - started < 60
    assert "3600 s" in answer["error"]["message"]


async def test_the_deadline_covers_a_call_and_all_its_retries(tmp_path: Path) -> None:
    async def hang(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with gate(tmp_path, hang, timeout_seconds=0.5, max_retries=5) as g:
        started = time.monotonic()
        status, answer = await g.call()
        behind = g.calls.behind(answer["error"]["message"])
    assert status == 424 and time.monotonic() - started < 2
    assert "timeoutSeconds = 0.5" in answer["error"]["message"]
    assert behind is not None and behind.failure_class == "timeout"


async def test_a_refusal_keeps_its_status_and_the_servers_words_but_not_the_key(tmp_path: Path) -> None:
    async with gate(tmp_path, refusing(401, f"wrong key {KEY}"), max_retries=3) as g:
        status, answer = await g.call()
    assert (status, len(g.model.requests)) == (401, 1)
    assert "wrong key ***" in answer["error"]["message"] and KEY not in json.dumps(answer)


SPELT = KEY.replace("real", "r\\u0065\\u0061l")
"""As JSON may spell a key; .NET writes `\\u002B` for a plus, and PHP `\\/` for a slash."""


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (401, "application/json", f'{{"error": {{"message": "wrong key {SPELT}"}}}}'),
        (422, "application/json", f'{{"detail": [{{"msg": "wrong key {SPELT}"}}]}}'),
        (200, "application/json", f'{{"error": {{"message": "wrong key {KEY}", "code": "with {KEY}"}}}}'),
        (200, "text/html", f"{'x' * (MAX_WORDS - 8)}{KEY}"),
        (200, "text/html", f"{' ' * (64 * 1024 - 8)}{KEY}"),
        (401, "text/html", f"{' ' * (256 * 1024 - 8)}{KEY}"),
        (200, "text/event-stream", f'data: {{"error": {{"message": "wrong key {SPELT}"}}}}\n\n'),
    ],
    ids=["message", "detail", "success", "cut", "read in part", "a refusal read in part", "stream"],
)
async def test_no_spelling_and_no_part_of_the_key_is_in_what_a_server_is_quoted_with(
    tmp_path: Path, status: int, kind: str, body: str
) -> None:
    async def answer(*_: object) -> web.StreamResponse:
        return web.Response(status=status, body=body.encode(), headers={"Content-Type": kind})

    async with gate(tmp_path, answer, max_retries=0) as g:
        async with g.client.post(f"{g.url}/models/policy/v1/chat/completions", json=CALL) as given:
            await given.read()
        (said,) = g.gateway.dead_models().values()
    assert said and not any(part in said for part in (KEY[:4], SPELT[:4], KEY[-4:])), said


async def test_a_400_about_a_parameter_cannot_be_taken_for_an_over_long_prompt(tmp_path: Path) -> None:
    async with gate(tmp_path, refusing(400, "parameter max_tokens not supported")) as g:
        status, answer = await g.call()
    assert status == 422
    assert "max_tokens not supported" in answer["error"]["message"]
    behind = g.calls.behind(answer["error"]["message"])
    assert behind is not None and behind.failure_class is FailureClass.MODEL


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"),
        (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        (
            400,
            "the request exceeds the available context size. try increasing the context size",
        ),
        (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096"),
        (422, "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000"),
        (413, "prompt is too long: 5000 tokens > 4096 maximum"),
    ],
)
async def test_an_over_long_prompt_has_a_class_of_its_own_and_no_answer_is_invented_for_it(
    tmp_path: Path, status: int, words: str
) -> None:
    """vllm_model of Gym invents one for a 400 (see the gateway's page)."""
    async with gate(tmp_path, refusing(status, words), max_retries=3) as g:
        answered, answer = await g.call()
    behind = g.calls.behind(answer["error"]["message"])
    assert behind is not None and behind.failure_class is FailureClass.CONTEXT
    assert (answered, len(g.model.requests)) == (422, 1)
    assert answer["error"]["code"] == "context_length_exceeded" and words in answer["error"]["message"]


async def test_a_redirect_is_not_followed_with_the_key(tmp_path: Path) -> None:
    async def redirect(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:9/elsewhere")

    async with gate(tmp_path, redirect, max_retries=2) as g:
        status, answer = await g.call()
    assert (status, len(g.model.requests)) == (424, 1)
    assert "baseUrl" in answer["error"]["message"]


async def test_a_server_that_is_not_there_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    async with gate(tmp_path, url="http://127.0.0.1:9/v1", max_retries=1) as g:
        status, answer = await g.call()
    assert status == 424
    assert "2 tries: ClientConnectorError: Cannot connect to host 127.0.0.1:9 [" in answer["error"]["message"]
    assert g.gateway.dead_models().keys() == {"policy"}


class Counting:
    """A model's answer that takes a while, and how many were being given at once."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds
        self.running = self.most = 0

    async def __call__(self, _: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return web.json_response(chat("1"))


async def test_no_more_calls_run_at_once_than_the_model_allows(tmp_path: Path) -> None:
    answer = Counting()
    async with gate(tmp_path, answer, max_concurrent_calls=3) as g:
        answers = await asyncio.gather(*(g.call() for _ in range(12)))
    assert {status for status, _ in answers} == {200}
    assert answer.most == 3


@pytest.mark.parametrize("no_proxy", ["", "model.example"])
async def test_a_model_is_reached_by_the_environments_proxy_unless_it_is_excepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: str
) -> None:
    proxy = FakeModel()
    async with serving(proxy.app()) as url:
        monkeypatch.setenv("http_proxy", url.replace("http://", "http://user:word@"))
        monkeypatch.setenv("no_proxy", no_proxy)
        async with gate(tmp_path, url="http://model.example/v1", timeout_seconds=5.0) as g:
            monkeypatch.delenv("http_proxy")
            status, _ = await g.call()
    assert status == (424 if no_proxy else 200)
    assert [sent.headers["Host"] for sent in proxy.requests] == ([] if no_proxy else ["model.example"])
    assert all("Proxy-Authorization" in sent.headers for sent in proxy.requests)


async def test_a_base_urls_query_is_kept(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        model = g.gateway._models["policy"].endpoint
        model.route = model.route.model_copy(update={"base_url": f"{model.route.base_url}/?api-version=1"})
        await g.call()
    assert g.model.requests[0].path_qs == "/v1/chat/completions?api-version=1"


DELTA = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


async def read_stream(g: Gate) -> tuple[bytes, bool]:
    """Everything that came, and whether it came to a clean end."""
    got = b""
    try:
        async with g.client.post(f"{g.url}/models/policy/v1/chat/completions", json=CALL | {"stream": True}) as answer:
            async for chunk in answer.content.iter_any():
                got += chunk
    except aiohttp.ClientError:
        return got, False
    return got, True


@pytest.mark.parametrize(
    "chunks",
    [
        (DELTA, DELTA, LAST, DONE),
        tuple(bytes([byte]) for byte in DELTA + LAST + DONE),
        ((DELTA + LAST).replace(b"\n", b"\r\n"),),
        (DELTA, LAST.rstrip(b"\n")),
    ],
    ids=["whole events", "single bytes", "CRLF and no [DONE]", "no blank line after the last event"],
)
async def test_a_stream_passes_byte_for_byte_and_is_metered(tmp_path: Path, chunks: tuple[bytes, ...]) -> None:
    async with gate(tmp_path, streaming(*chunks)) as g:
        got, clean = await read_stream(g)
    assert (got, clean) == (b"".join(chunks), True)
    assert (g.usage["calls"], g.usage["total_tokens"], g.usage["failed_calls"]) == (1, 7, 0)


async def test_a_responses_stream_is_metered_from_its_last_event(tmp_path: Path) -> None:
    last = {"type": "response.completed", "response": {"usage": {"input_tokens": 4, "output_tokens": 1}}}
    event = b"event: response.completed\ndata: " + json.dumps(last).encode() + b"\n\n"
    async with gate(tmp_path, streaming(event)) as g:
        assert (await read_stream(g))[1]
    assert g.usage["total_tokens"] == 5


@pytest.mark.parametrize(
    ("sent", "ends"),
    [((DELTA, DELTA, DELTA), True), ((DELTA, DELTA[:9]), False)],
    ids=["ends without finish reason", "breaks inside an event"],
)
async def test_an_incomplete_stream_is_not_ended_cleanly_nor_repeated(
    tmp_path: Path, sent: tuple[bytes, ...], ends: bool
) -> None:
    async with gate(tmp_path, streaming(*sent, clean=ends), max_retries=3) as g:
        got, clean = await read_stream(g)
        (failed,) = g.calls._marks.values()
    assert (got, clean) == (b"".join(sent), False)
    assert failed.failure_class is FailureClass.TRANSIENT
    assert len(g.model.requests) == 1
    assert (g.usage["calls"], g.usage["failed_calls"], g.usage["unmetered_calls"]) == (0, 1, 1)


async def test_a_stream_that_breaks_before_its_first_byte_is_repeated(tmp_path: Path) -> None:
    left = [streaming(), streaming(DELTA, LAST)]

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await left.pop(0)(request, body)

    async with gate(tmp_path, answer, max_retries=1) as g:
        got, clean = await read_stream(g)
    assert (got, clean, len(g.model.requests)) == (DELTA + LAST, True, 2)


@contextlib.asynccontextmanager
async def noticing_who_leaves(g: Gate) -> AsyncIterator[str]:
    """The gateway's API as an evaluator serves it, which ends a call when its caller has gone. Left once all have."""
    app = make_app(Backends(TOKENS, g.gateway, ProgressState(1)))
    async with serving_as_an_evaluator(app, host="127.0.0.1", port=0, canary_port=0) as port:
        yield f"http://127.0.0.1:{port}/models/policy/v1/chat/completions"
        slots = g.gateway._models["policy"].slots
        async with asyncio.timeout(30):
            while slots._value < 64:
                await asyncio.sleep(0.01)


async def leave(g: Gate, url: str, body: Any, after: asyncio.Event) -> None:
    """Begin a call, and go away once `after` is set, or a byte has come."""

    async def call() -> None:
        async with g.client.post(url, data=body) as answer:
            async for _ in answer.content.iter_any():
                after.set()

    calling = asyncio.create_task(call())
    async with asyncio.timeout(30):
        await after.wait()
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)


COST_SO_FAR = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'


@pytest.mark.parametrize(
    ("events", "counted"),
    [
        (b"", {"aborted_calls": 1, "unmetered_calls": 1}),
        (DELTA, {"aborted_calls": 1, "unmetered_calls": 1}),
        (COST_SO_FAR, {"aborted_calls": 1, "input_tokens": 5, "output_tokens": 2, "total_tokens": 7}),
        (LAST, {"calls": 1, "input_tokens": 5, "output_tokens": 2, "total_tokens": 7}),
    ],
    ids=["before the first byte", "in the middle", "after its cost was stated", "when it has seen the end"],
)
async def test_a_caller_that_leaves_ends_its_call_which_is_charged_and_is_no_answer_unless_it_was_all_there(
    tmp_path: Path, events: bytes, counted: dict[str, int]
) -> None:
    leaves = asyncio.Event()

    async def slow(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if events:
            await response.prepare(request)
            await response.write(events)
        else:
            leaves.set()
        await asyncio.sleep(60)
        return response

    async with gate(tmp_path, slow, bounds={"calls": 1}) as g:
        async with noticing_who_leaves(g) as url:
            await leave(g, url, json.dumps(CALL), leaves)
        usage, spent = g.gateway.usage()["policy"], g.gateway.spent()
    assert usage.model_dump(exclude_defaults=True, exclude={"seconds", "latency_seconds"}) == counted
    assert spent is not None and spent.reason == "CallLimitReached"


async def test_a_caller_that_leaves_before_its_request_is_whole_has_asked_no_model(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def in_part() -> AsyncIterator[bytes]:
        yield b'{"model":'
        began.set()
        await asyncio.sleep(60)

    async with gate(tmp_path, bounds={"calls": 1}) as g:
        async with noticing_who_leaves(g) as url:
            await leave(g, url, in_part(), began)
        assert g.gateway.usage()["policy"] == ModelUsage()
        assert g.gateway.spent() is None


async def test_a_model_is_dead_when_its_callers_left_or_were_refused(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def slow(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        began.set()
        await asyncio.sleep(60)
        return web.Response()

    async with gate(tmp_path, slow) as g:
        async with noticing_who_leaves(g) as url:
            await leave(g, url, json.dumps(CALL), began)
        g.model.answer = refusing(404, "no such model")
        await g.call()
        assert "no such model" in g.gateway.dead_models()["policy"]


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "other", "messages": []}',
        '{"model": "other", "model": "MODEL"}',
        '{"model": "MODEL", "model": "other"}',
        '{"model": "MODEL", "MODEL": "other"}',
        '{"Model": "MODEL"}',
        '{"model": "MODEL", "m\\u006fdel": "other"}',
        '{"model": "MODEL", "extra_body": {"models": ["other"]}, "extra_body": {}}',
        '["MODEL"]',
        '"MODEL"',
    ],
)
async def test_no_spelling_of_a_call_reaches_a_model_that_the_job_does_not_declare(tmp_path: Path, body: str) -> None:
    async with gate(tmp_path) as g:
        url = f"{g.url}/models/policy/v1/chat/completions"
        async with g.client.post(url, data=body.replace('"MODEL"', json.dumps(MODEL), 1)) as answer:
            assert answer.status == 422
        assert not g.model.bodies


def test_tokens_that_no_status_could_hold_are_not_counted() -> None:
    assert usage_of({"usage": {"prompt_tokens": 10**30, "completion_tokens": 3}}) == (0, 3, 3)
    assert usage_of({"usage": {"prompt_tokens": 10**30}}) is None


async def test_a_call_beyond_the_jobs_tokens_never_reaches_the_model_and_is_refused_for_good(tmp_path: Path) -> None:
    async with gate(tmp_path, bounds={"tokens": 240}) as g:
        assert [(await g.call())[0] for _ in range(2)] == [200, 200]
        status, body = await g.call()
    assert len(g.model.requests) == 2
    assert status not in GYM_REPEATS and body["error"]["code"] == "token_limit_reached"
    assert "240 tokens, and spec.limits.tokens allows 240" in body["error"]["message"]
    call = g.calls.behind(body["error"]["message"])
    assert call is not None and call.failure_class is FailureClass.BUDGET


async def test_what_an_earlier_attempt_counted_is_counted_on(tmp_path: Path) -> None:
    before = Counted(calls=3, total_tokens=360, input_tokens=300, output_tokens=60)
    async with gate(tmp_path, bounds={"tokens": 480}, counted={"policy": before}) as g:
        assert [(await g.call())[0] == 200 for _ in range(2)] == [True, False]
        assert (g.usage["calls"], g.usage["total_tokens"], g.usage["failed_calls"]) == (4, 480, 0)
    assert (before.calls, len(g.model.requests)) == (3, 1)


async def test_calls_that_run_when_the_tokens_are_used_end_normally(tmp_path: Path) -> None:
    async def slow(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.json_response(chat("1"))

    async with gate(tmp_path, slow, bounds={"tokens": 1}) as g:
        assert [status for status, _ in await asyncio.gather(*(g.call() for _ in range(4)))] == [200] * 4
        assert (await g.call())[0] != 200
    assert len(g.model.requests) == 4


async def test_no_call_is_made_beyond_the_jobs_calls_even_at_once(tmp_path: Path) -> None:
    async def slow(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.json_response(chat("1"))

    async with gate(tmp_path, slow, bounds={"calls": 3}) as g:
        answers = await asyncio.gather(*(g.call() for _ in range(6)))
        spent = g.gateway.spent()
    refused = [body["error"] for status, body in answers if status != 200]
    assert (len(g.model.requests), len(refused)) == (3, 3)
    assert {error["code"] for error in refused} == {"call_limit_reached"}
    assert "spec.limits.calls allows 3" in refused[0]["message"]
    assert spent is not None and spent.reason == "CallLimitReached"


async def test_calls_that_took_the_jobs_seconds_are_the_last(tmp_path: Path) -> None:
    async def slow(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.6)
        return web.json_response(chat("1"))

    before = Counted(calls=1, seconds=0.5)
    async with gate(tmp_path, slow, bounds={"model_seconds": 1}, counted={"policy": before}) as g:
        assert (await g.call())[0] == 200
        status, body = await g.call()
        spent = g.gateway.spent()
    assert status not in GYM_REPEATS and body["error"]["code"] == "model_time_limit_reached"
    assert "spec.limits.modelSeconds allows 1" in body["error"]["message"]
    assert spent is not None and spent.reason == "ModelTimeLimitReached"
    assert 1.1 <= g.usage["seconds"] < 60 and len(g.model.requests) == 1


async def test_no_more_calls_run_at_once_than_the_job_may_whatever_its_models_allow(tmp_path: Path) -> None:
    answer = Counting()
    async with gate(tmp_path, answer, bounds={"concurrent_calls": 2}) as g:
        answers = await asyncio.gather(*(g.call() for _ in range(8)))
    assert ({status for status, _ in answers}, answer.most) == ({200}, 2)


async def test_a_wish_for_a_year_that_no_calendar_has_is_none(tmp_path: Path) -> None:
    never = {"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}
    async with gate(tmp_path, in_turn(503, headers=never), max_retries=1) as g:
        assert (await g.call())[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_the_gateway_is_not_made_for_is_a_failed_call_and_says_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def fail(*_: object) -> None:
        raise LookupError(f"a fault of our own, with {KEY} in its words")

    monkeypatch.setattr(metering, "usage_of", fail)
    monkeypatch.setattr(answers, "usage_of", fail)
    answer = streaming(b'data: {"choices": []}\n\n', b"data: [DONE]\n\n") if stream else None
    async with gate(tmp_path, answer) as g:
        if stream:
            with pytest.raises(aiohttp.ClientError):
                await g.call()
        else:
            status, body = await g.call()
            assert (status, "LookupError" in body["error"]["message"]) == (424, True)
        assert (g.usage["calls"], g.usage["failed_calls"]) == (0, 1)
    assert "LookupError" in caplog.text and KEY not in caplog.text


async def test_a_refusal_made_to_be_slow_to_read_holds_nobody_up(tmp_path: Path) -> None:
    async with gate(tmp_path, refusing(400, "input token count " * 14_000)) as g:
        began = time.process_time()
        assert (await g.call())[0] == 422
        assert time.process_time() - began < 2.0
