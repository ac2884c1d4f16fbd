"""The scripted model server, asked directly and through the gateway: the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from support import scripted_policy
from support.scripted_policy import ScriptedPolicy
from unit.evaluator_fakes import KEY, MODEL, serving
from unit.test_gateway_calls import gate

ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "one and one?"}]},
    "expected_answer": "2 \u00e4",
}
ASKS_TOOL = [{"role": "user", "content": "what is it in Oslo?"}]
RECORDED = {
    "responses_create_params": {"input": ASKS_TOOL},
    "response": {
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I should look it \u00fcp \U0001f600"}]},
            {"type": "function_call", "name": "look_up", "arguments": '{"q": "Oslo \\u00e4"}', "call_id": "call_1"},
            {"type": "function_call", "name": "wait", "arguments": "{}", "call_id": "call_2"},
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
        ]
    },
}
TEXT = {"messages": ROW["responses_create_params"]["input"]}
TOOLS = {
    "messages": ASKS_TOOL,
    "include_reasoning": True,
    "tools": [{"type": "function", "function": {"name": "look_up"}}],
}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
RESPONSE = {"input": ROW["responses_create_params"]["input"]}


@pytest.mark.parametrize(
    ("path", "body", "holds"),
    [
        ("chat/completions", TEXT, [b"boxed"]),
        ("chat/completions", TEXT | STREAM, [b"data: [DONE]"]),
        ("chat/completions", TOOLS, [b'"tool_calls": [', b"reasoning_content"]),
        ("chat/completions", TOOLS | STREAM, [b'"tool_calls": [', b"reasoning_content", b"data: [DONE]"]),
        ("responses", RESPONSE, [b"output_text"]),
        ("responses", RESPONSE | {"stream": True}, [b"response.output_text.delta", b"response.completed"]),
    ],
    ids=[
        "text",
        "text stream",
        "tool calls and reasoning",
        "tool calls and reasoning stream",
        "response",
        "response stream",
    ],
)
async def test_what_the_scripted_server_says_passes_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], holds: list[bytes]
) -> None:
    monkeypatch.setattr(scripted_policy, "time", SimpleNamespace(time=lambda: 1.0))
    monkeypatch.setattr(scripted_policy, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="0" * 32)))
    policy = ScriptedPolicy([ROW], wrong=(), key=KEY, model=MODEL, replayed=[RECORDED])
    sent = json.dumps({"model": MODEL, **body}).encode()

    async def asked(session: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, str, bytes]:
        headers = {"Content-Type": "application/json", **headers}
        async with session.post(f"{url}/{path}", data=sent, headers=headers) as answer:
            return answer.status, answer.headers["Content-Type"], await answer.read()

    async with serving(policy.application()) as url, gate(tmp_path, url=f"{url}/v1") as g:
        direct = await asked(g.client, f"{url}/v1", Authorization=f"Bearer {KEY}")
        through = await asked(g.client, f"{g.url}/models/policy/v1")
    assert direct[0] == 200 and all(words in direct[2] for words in holds)
    assert through == direct
    assert (g.usage["calls"], g.usage["total_tokens"], g.usage["unmetered_calls"]) == (1, 120, 0)
