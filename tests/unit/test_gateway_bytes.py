"""What passes through the model gateway is not touched, and nothing passes without end."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nhx_gym_operator.api.wire.reports import FailureClass
from nhx_gym_operator.evaluator.gateway import answers, requests
from unit.evaluator_fakes import MODEL, TOKENS, Answer, chat
from unit.test_gateway_calls import CALL, DELTA, DONE, GYM_REPEATS, LAST, Counting, Gate, gate, read_stream, streaming

TOOL_CALL = rb"""{"id":"c1",  "object":"chat.completion","created":1,"model":"m","x_vendor":{"b":1,"a":[1e400,-0.0]},
 "choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"reasoning":"hm\u00e4",
 "reasoning_content":"first\nthen","tool_calls":[{"id":"t","type":"function","function":{"name":"look_up",
 "arguments":"{\"q\": \"\u2028 \\u00e4\", \"q\": 2}"}}]},"logprobs":null}],"usage":{"prompt_tokens":3,
 "completion_tokens":4,"total_tokens":7,"completion_tokens_details":{"reasoning_tokens":2}}}
"""
"""Odd spacing, keys in no order, fields of no API, numbers that no parser gives back."""
REASONED = rb"""{"id":"r1","object":"response","status":"completed","error":null,"output":[{"type":"reasoning","id":"s",
"summary":[],"encrypted_content":"gAAA\/+=="},{"type":"function_call","call_id":"t","name":"f","arguments":"{}"}],
"usage":{"input_tokens":5,"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1}}}"""
ASKED = f"""{{ "messages":[{{"role":"user","content":"\\u00e4\\ud83d\\ude00 ä"}}],"temperature":1.0e0,
"tools":[{{"type":"function","strict":null}}],  "model":{json.dumps(MODEL)} , "x_vendor": {{"z":1,"a":2}}}}
""".encode()
TOOL_STREAM = (
    b': a comment\n\ndata: {"choices":[{"delta":{"role":"assistant","reasoning_content":"h\xc3',
    b'\xa4"}}]}\r\n\r\ndata:{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"q\\""}}]}}]}\n\n',
    b'event: x\nid: 7\nretry: 3\ndata: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\ndata: [DONE]\n\n',
)
RESPONSE_STREAM = (
    b'event: response.reasoning_text.delta\ndata: {"type":"response.reasoning_text.delta","delta":"hm"}\n\n',
    b'event: response.completed\ndata: {"type":"response.completed","response":{"error":null,"usage":',
    b'{"input_tokens":4,"output_tokens":3}}}\n\n',
)


def answering(body: bytes, content_type: str = "application/json") -> Answer:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Type": content_type})

    return answer


async def raw(g: Gate, path: str, body: bytes) -> tuple[int, bytes, str]:
    headers = {"Content-Type": "application/json"}
    async with g.client.post(f"{g.url}/models/policy/v1/{path}", data=body, headers=headers) as answer:
        return answer.status, await answer.read(), answer.headers["Content-Type"]


def failure_class(g: Gate) -> FailureClass:
    """Of the last call that failed."""
    return next(reversed(g.calls._marks.values())).failure_class


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [("chat/completions", TOOL_CALL, 7), ("responses", REASONED, 7)],
    ids=["chat", "responses"],
)
async def test_tool_calls_and_reasoning_pass_byte_for_byte_both_ways(
    tmp_path: Path, path: str, body: bytes, tokens: int
) -> None:
    came: list[bytes] = []

    async def answer(request: web.Request, parsed: dict[str, Any]) -> web.StreamResponse:
        came.append(await request.read())
        return await answering(body, "application/json; charset=utf-8")(request, parsed)

    async with gate(tmp_path, answer) as g:
        got = await raw(g, path, ASKED)
    assert got == (200, body, "application/json; charset=utf-8")
    assert came == [ASKED]
    assert g.usage["total_tokens"] == tokens


@pytest.mark.parametrize("chunks", [TOOL_STREAM, RESPONSE_STREAM], ids=["chat", "responses"])
async def test_tool_calls_and_reasoning_stream_byte_for_byte(tmp_path: Path, chunks: tuple[bytes, ...]) -> None:
    async with gate(tmp_path, streaming(*chunks)) as g:
        assert await read_stream(g) == (b"".join(chunks), True)
    assert (g.usage["calls"], g.usage["failed_calls"], g.usage["total_tokens"]) == (1, 0, 7)


async def test_a_stream_that_never_ends_is_ended_and_named(tmp_path: Path) -> None:
    async def endless(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(DELTA)
            await asyncio.sleep(0.05)

    async with gate(tmp_path, endless, timeout_seconds=1.0, max_retries=3) as g:
        got, clean = await read_stream(g)
        assert failure_class(g) is FailureClass.TIMEOUT
        said = g.gateway.dead_models()["policy"]
    assert got.startswith(DELTA) and not clean and len(g.model.requests) == 1
    assert "stream did not end within spec.models[name=policy].timeoutSeconds = 1" in said


async def test_a_caller_that_does_not_read_its_stream_holds_nothing_for_ever(tmp_path: Path) -> None:
    big = b'data: {"choices":[{"delta":{"content":"' + b"x" * 200_000 + b'"}}]}\n\n'
    async with gate(tmp_path, streaming(*[big] * 100), timeout_seconds=1.5) as g:
        url = f"{g.url}/models/policy/v1/chat/completions"
        async with g.client.post(url, json=CALL | {"stream": True}), asyncio.timeout(60):
            while not g.usage["failed_calls"]:
                await asyncio.sleep(0.05)
        assert failure_class(g) is FailureClass.TIMEOUT
        assert not g.gateway._models["policy"].slots.locked()


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
async def test_an_answer_without_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content_type: str
) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 1000)
    async with gate(tmp_path, answering(DELTA * 100, content_type), max_retries=3) as g:
        if content_type == "application/json":
            status, body, _ = await raw(g, "chat/completions", ASKED)
            assert status not in GYM_REPEATS and b"exceeds 1000 bytes" in body
        else:
            assert (await read_stream(g))[1] is False
        assert failure_class(g) is FailureClass.MODEL
    assert len(g.model.requests) == 1


async def test_a_request_without_end_is_refused_in_the_words_of_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_REQUEST_BYTES", 1000)
    async with gate(tmp_path) as g:
        status, body, _ = await raw(g, "chat/completions", b" " * 2000)
        assert failure_class(g) is FailureClass.ENVIRONMENT
    assert status == 413 and json.loads(body)["error"]["code"] == "request_too_large"
    assert g.model.requests == []


async def test_a_request_of_too_many_values_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_REQUEST_VALUES", 1000)
    async with gate(tmp_path) as g:
        prose = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "yes, [no], " * 2000}]})
        assert (await raw(g, "chat/completions", prose.encode()))[0] == 200
        many = json.dumps({"model": MODEL, "messages": [[]] * 1001})
        status, body, _ = await raw(g, "chat/completions", many.encode())
        assert failure_class(g) is FailureClass.ENVIRONMENT
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (413, "request_too_large")
    assert error["message"].startswith("a request has at most 1000 JSON values")
    assert len(g.model.requests) == 1


@pytest.mark.parametrize("kind", ["of a length", "of no length", "packed"])
async def test_large_requests_that_are_under_way_share_room_and_only_a_large_one_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    answer = Counting(seconds=0.3)
    body = b" " * 600 + ASKED

    async def in_pieces() -> AsyncIterator[bytes]:
        yield body

    monkeypatch.setattr(requests, "MAX_REQUEST_BYTES", 1000)
    monkeypatch.setattr(requests, "REQUEST_ROOM_BYTES", 2000)
    monkeypatch.setattr(requests, "SMALL_BYTES", len(ASKED))
    async with gate(tmp_path, answer) as g:
        url = f"{g.url}/models/policy/v1/chat/completions"

        async def call() -> int:
            sent = {"of a length": body, "of no length": in_pieces(), "packed": zlib.compress(body)}[kind]
            headers = {"Content-Encoding": "deflate"} if kind == "packed" else {}
            async with g.client.post(url, data=sent, headers=headers) as got:
                return got.status

        async with asyncio.timeout(60):
            assert await asyncio.gather(*(call() for _ in range(6))) == [200] * 6
            assert answer.most == 2
            large = asyncio.gather(*(call() for _ in range(6)))
            small = asyncio.gather(*(raw(g, "chat/completions", ASKED) for _ in range(6)))
            assert [status for status, _, _ in await small] == [200] * 6
            assert not large.done() and await large == [200] * 6
    assert answer.most > 2
    assert g.gateway._requests._room._free == 2000


async def test_a_request_that_does_not_arrive_gives_its_turn_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "REQUEST_SECONDS", 0.3)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"model":'
        await asyncio.sleep(30)

    async with gate(tmp_path, max_concurrent_calls=1) as g:
        url = f"{g.url}/models/policy/v1/chat/completions"
        stuck = asyncio.create_task(g.client.post(url, data=slowly()).__aenter__())
        await asyncio.sleep(0.1)
        started = time.monotonic()
        assert (await g.call())[0] == 200
        assert time.monotonic() - started < 20
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
        assert failure_class(g) is FailureClass.ENVIRONMENT


async def test_an_answer_of_too_many_values_is_cut_off_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_VALUES", 1000)
    async with gate(tmp_path, answering(json.dumps(chat("1") | {"logprobs": [0] * 1001}).encode())) as g:
        status, body, _ = await raw(g, "chat/completions", ASKED)
        assert failure_class(g) is FailureClass.MODEL
    assert status not in GYM_REPEATS and b"exceeds 1000 JSON values" in body


async def test_a_caller_that_takes_no_answers_is_given_few_and_holds_none_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = 8 << 20
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 10 << 20)
    monkeypatch.setattr(answers, "ANSWER_ROOM_BYTES", 20 << 20)
    monkeypatch.setattr(answers, "HANDOVER_SECONDS", 3.0)
    async with gate(tmp_path, answering(json.dumps(chat("x" * large)).encode())) as g:
        host, port = g.url.removeprefix("http://").split(":")
        head = (
            f"POST /models/policy/v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer "
            f"{TOKENS.hosts[0]}\r\nContent-Type: application/json\r\nContent-Length: {len(ASKED)}\r\n\r\n"
        )
        deaf = []
        for _ in range(4):
            deaf.append(socket.socket())
            # What the kernel takes is not held here.
            deaf[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf[-1].connect((host, int(port)))
            deaf[-1].sendall(head.encode() + ASKED)
        async with asyncio.timeout(60):
            while g.usage["calls"] < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert g.usage["calls"] == 2, "the others wait for room"
            assert (await g.call())[0] == 200
        for each in deaf:
            each.close()
    assert g.gateway._answers._room._free == 20 << 20


async def test_garbage_is_no_answer(tmp_path: Path) -> None:
    """A proxy's page, sent as a success."""
    async with gate(tmp_path, answering(b"<html>Sign in, please</html>", "text/html"), max_retries=1) as g:
        status, body, _ = await raw(g, "chat/completions", ASKED)
        assert failure_class(g) is FailureClass.TRANSIENT
    assert status not in GYM_REPEATS and b"is not JSON: <html>Sign in" in body
    assert len(g.model.requests) == 2


@pytest.mark.parametrize(
    ("answer", "expected", "tries"),
    [
        ({"status": "failed", "output": [], "error": {"code": "server_error", "message": "oops"}}, "transient", 2),
        ({"status": "failed", "output": [], "error": {"code": "invalid_prompt", "message": "oops"}}, "model", 1),
        ({"status": "failed", "output": [], "error": None}, "model", 1),
        ({"error": {"code": 503, "message": "oops"}}, "transient", 2),
        ({"error": {"code": 402, "message": "oops"}}, "model", 1),
        ({"error": {"code": "context_length_exceeded", "message": "oops"}}, "context", 1),
        ({"error": "oops"}, "model", 1),
        ([], "model", 1),
    ],
)
async def test_an_answer_that_says_that_it_failed_is_none(
    tmp_path: Path, answer: Any, expected: str, tries: int
) -> None:
    async with gate(tmp_path, answering(json.dumps(answer).encode()), max_retries=1) as g:
        status, _, _ = await raw(g, "responses", ASKED)
        assert failure_class(g) == expected
    assert status >= 400 and status not in GYM_REPEATS
    assert (len(g.model.requests), g.usage["calls"]) == (tries, 0)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"type":"error","code":"server_error","message":"oops"}\n\n',
        b'data: {"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}\n\n',
        b'data: {"error":{"code":502,"message":"oops"},"choices":[]}\n\n',
    ],
)
async def test_an_event_that_says_that_the_answer_failed_is_passed_on_and_believed(
    tmp_path: Path, event: bytes
) -> None:
    async with gate(tmp_path, streaming(DELTA, event), max_retries=3) as g:
        assert await read_stream(g) == (DELTA + event, True)
        assert failure_class(g) is FailureClass.TRANSIENT
    assert (g.usage["calls"], g.usage["failed_calls"], len(g.model.requests)) == (0, 1, 1)


async def test_an_answer_with_an_empty_error_is_an_answer(tmp_path: Path) -> None:
    async with gate(tmp_path, answering(json.dumps(chat("1") | {"error": None}).encode())) as g:
        assert (await raw(g, "chat/completions", ASKED))[0] == 200
    async with gate(tmp_path, streaming(DELTA, LAST, DONE)) as g:
        assert (await read_stream(g))[1]
    assert isinstance(g.client, aiohttp.ClientSession) and g.usage["failed_calls"] == 0
