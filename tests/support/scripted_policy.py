"""An OpenAI-compatible model server whose answers are known, for tests with real Gym and real pods.

It looks a request's prompt up in a dataset (JSONL rows as Gym takes them) and answers it: right
everywhere, wrong on the rows that it is told to be wrong on. Every answer costs 100 input and 20 output
tokens. One file, aiohttp only, so that it runs from a mounted ConfigMap in any image of the project:

    python scripted_policy.py --gold example.jsonl --wrong 4 --fault 2:status=503:times=1 --fault 3:delay=5

`--replay FILE` adds rollouts as Gym wrote them (`example_rollouts.jsonl`): a row of theirs is answered with what the
model said then, tool calls included, turn by turn, and its reasoning for who sets `include_reasoning`. `--unknown TEXT`
is the answer to everything else. What a call carries beside the fields of the API is in `/stats` as `extras`, for tests
of what reaches a model.

A fault is `ROW:status=N`, `ROW:delay=SECONDS` or `ROW:hang`, with `:times=N` for the first N calls
only, and with `:words=TEXT` for what a status says; ROW is an index into the dataset, or `*`. With
SCRIPTED_KEY set, calls need it as bearer key.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

INPUT_TOKENS, OUTPUT_TOKENS = 100, 20


@dataclass
class Fault:
    row: int | None
    kind: str
    value: float = 0.0
    times: int | None = None
    words: str = ""

    @classmethod
    def parse(cls, text: str) -> Fault:
        row, action, *rest = text.split(":")
        kind, _, value = action.partition("=")
        if kind not in ("status", "delay", "hang"):
            raise ValueError(f"{text!r}: a fault is ROW:status=N, ROW:delay=SECONDS or ROW:hang")
        more = dict(part.split("=", 1) for part in rest)
        times = int(more["times"]) if "times" in more else None
        return cls(None if row == "*" else int(row), kind, float(value or 0), times, more.get("words", ""))

    def applies(self, row: int | None) -> bool:
        if self.times == 0 or self.row not in (None, row):
            return False
        if self.times is not None:
            self.times -= 1
        return True


def prompt_of(messages: Any) -> str:
    """The text of all user messages of a chat or of a Responses input."""
    if isinstance(messages, str):
        return messages.strip()
    texts = []
    for message in messages or []:
        if message.get("role") == "user":
            content = message.get("content")
            parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content or []]
            texts.append("".join(parts).strip())
    return "\n".join(texts)


def right_answer(row: dict[str, Any]) -> str:
    if "expected_words" in row:
        return " ".join(words.split("|")[0] for words in row["expected_words"])
    return f"\\boxed{{{row['expected_answer']}}}"


def wrong_answer(row: dict[str, Any]) -> str:
    if "expected_words" in row:
        return "nothing"
    letters = [letter for option in row["options"] for letter in option]
    return f"\\boxed{{{next(letter for letter in letters if letter != row['expected_answer'])}}}"


def turns_of(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the model said in a recorded rollout, a `{"text", "calls", "reasoning"}` for each time that it was asked."""
    turns: list[dict[str, Any]] = []
    said, thought = False, ""
    for item in output:
        by_model = item.get("type") == "function_call" or item.get("role") == "assistant"
        if item.get("type") == "reasoning":
            thought += "".join(part.get("text", "") for part in item.get("summary") or [])
        if by_model:
            if not said:
                turns.append({"text": "", "calls": [], "reasoning": thought})
                thought = ""
            if item["type"] == "function_call":
                turns[-1]["calls"].append({key: item[key] for key in ("name", "arguments", "call_id")})
            else:
                turns[-1]["text"] += "".join(part.get("text", "") for part in item["content"])
        said = by_model or (said and item.get("type") == "reasoning")
    return turns


def said_by_model(messages: Any) -> int:
    """How often the model has had its turn in a chat; nothing is said in a bare prompt."""
    return sum(message.get("role") == "assistant" for message in messages) if isinstance(messages, list) else 0


_API_FIELDS = """
model messages input stream temperature top_p max_tokens max_completion_tokens max_output_tokens tools tool_choice
parallel_tool_calls n stop seed instructions metadata include store reasoning text truncation stream_options
"""


class ScriptedPolicy:
    """The server. `calls` and the rest of `/stats` count what reached it."""

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        wrong: Iterable[int] = (4,),
        faults: Iterable[Fault] = (),
        key: str | None = None,
        model: str = "scripted",
        replayed: Iterable[dict[str, Any]] = (),
        unknown: str = "I do not know this question.",
    ) -> None:
        self._rows = list(rows)
        self._index = {prompt_of(row["responses_create_params"]["input"]): at for at, row in enumerate(self._rows)}
        self._wrong = set(wrong)
        self._faults = list(faults)
        self._key = key
        self._model = model
        self._replayed: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        for row in replayed:
            asked = row["responses_create_params"]["input"]
            self._replayed.setdefault(prompt_of(asked), (said_by_model(asked), turns_of(row["response"]["output"])))
        self._unknown = unknown
        self.extras: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self.by_row: Counter[int | None] = Counter()
        self.unauthorized = 0
        self.in_flight = self.most_in_flight = 0

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._authorize], client_max_size=64 << 20)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/responses", self._responses)
        return app

    @web.middleware
    async def _authorize(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        wanted = f"Bearer {self._key}"
        if self._key and request.path.startswith("/v1/") and request.headers.get("Authorization") != wanted:
            self.unauthorized += 1
            return _refusal(401, "the key is not the one this server was started with")
        return await handler(request)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _stats(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "calls": dict(self.calls),
                "by_row": {str(row): count for row, count in self.by_row.items()},
                "unauthorized": self.unauthorized,
                "extras": self.extras,
                "most_in_flight": self.most_in_flight,
            }
        )

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._model, "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.extras |= {key: value for key, value in body.items() if key not in _API_FIELDS.split()}
        if turn := self._recorded_turn(body.get("messages")):
            self.calls["chat"] += 1
            reasoning = turn["reasoning"] if body.get("include_reasoning") else ""
            if body.get("stream"):
                return await _stream(request, _chat_chunks(self._model, turn["text"], body, turn["calls"], reasoning))
            return web.json_response(_completion(self._model, turn["text"], turn["calls"], reasoning))
        answer = await self._answer("chat", prompt_of(body.get("messages")))
        if isinstance(answer, web.Response):
            return answer
        if body.get("stream"):
            return await _stream(request, _chat_chunks(self._model, answer, body))
        return web.json_response(_completion(self._model, answer))

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.extras |= {key: value for key, value in body.items() if key not in _API_FIELDS.split()}
        answer = await self._answer("responses", prompt_of(body.get("input")))
        if isinstance(answer, web.Response):
            return answer
        if body.get("stream"):
            return await _stream(request, _response_events(self._model, answer, body))
        return web.json_response(_response(self._model, answer, body))

    def _recorded_turn(self, messages: Any) -> dict[str, Any] | None:
        """What was said at this point of a recorded rollout; its last turn again if it goes on for longer."""
        prompt = prompt_of(messages)
        found = self._replayed.get(prompt) or next(
            (found for start, found in self._replayed.items() if prompt.startswith(start)), None
        )
        if found is None or not found[1]:
            return None
        before, turns = found
        return turns[min(max(said_by_model(messages) - before, 0), len(turns) - 1)]

    async def _answer(self, path: str, prompt: str) -> str | web.Response:
        row = self._index.get(prompt)
        self.calls[path] += 1
        self.by_row[row] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for fault in self._faults:
                if fault.applies(row):
                    if fault.kind == "status":
                        return _refusal(int(fault.value), fault.words or f"scripted fault for row {row}")
                    await asyncio.sleep(fault.value if fault.kind == "delay" else 86400)
        finally:
            self.in_flight -= 1
        if row is None:
            return self._unknown
        return (wrong_answer if row in self._wrong else right_answer)(self._rows[row])


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "scripted", "code": status}}, status=status)


def _usage() -> dict[str, Any]:
    return {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"id": call["call_id"], "type": "function", "function": function}


def _completion(model: str, text: str, calls: Sequence[dict[str, Any]] = (), reasoning: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    if reasoning:
        message["reasoning_content"] = reasoning
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": _usage(),
    }


async def _chat_chunks(
    model: str, text: str, body: dict[str, Any], calls: Sequence[dict[str, Any]] = (), reasoning: str = ""
) -> AsyncIterator[str]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
    half = len(text) // 2
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": word} for word in reasoning.split()]
    deltas += [{"content": text[:half]}, {"content": text[half:]}]
    for number, call in enumerate(calls):
        whole = {"index": number, **_tool_call(call)}
        rest = {"index": number, "function": {"arguments": call["arguments"]}}
        whole["function"] = {"name": call["name"], "arguments": ""}
        deltas += [{"tool_calls": [whole]}, {"tool_calls": [rest]}]
    for delta in deltas:
        yield json.dumps(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    why = "tool_calls" if calls else "stop"
    yield json.dumps(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": why}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield json.dumps(head | {"choices": [], "usage": _usage()})
    yield "[DONE]"


def _response(model: str, text: str, body: dict[str, Any]) -> dict[str, Any]:
    content = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [content]}
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "status": "completed",
        "output": [message],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        },
    }


async def _response_events(model: str, text: str, body: dict[str, Any]) -> AsyncIterator[str]:
    done = _response(model, text, body)
    created = done | {"status": "in_progress", "output": [], "usage": None}
    half = len(text) // 2
    events: list[dict[str, Any]] = [{"type": "response.created", "response": created}]
    for delta in (text[:half], text[half:]):
        events.append({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "delta": delta})
    events.append({"type": "response.completed", "response": done})
    for number, event in enumerate(events):
        yield json.dumps(event | {"sequence_number": number})


async def _stream(request: web.Request, events: AsyncIterator[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    async for event in events:
        await response.write(f"data: {event}\n\n".encode())
    await response.write_eof()
    return response


def read_rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def main() -> None:
    env = os.environ
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gold", default=env.get("SCRIPTED_GOLD"), required="SCRIPTED_GOLD" not in env)
    parser.add_argument("--wrong", default=env.get("SCRIPTED_WRONG", "4"), help="row indices, with commas")
    parser.add_argument("--fault", action="append", default=env.get("SCRIPTED_FAULTS", "").split())
    parser.add_argument("--port", type=int, default=int(env.get("SCRIPTED_PORT", "8000")))
    parser.add_argument("--replay", action="append", default=[])
    parser.add_argument("--unknown", default="I do not know this question.")
    parser.add_argument("--model", default=env.get("SCRIPTED_MODEL", "scripted"))
    options = parser.parse_args()
    policy = ScriptedPolicy(
        read_rows(options.gold),
        wrong=[int(index) for index in options.wrong.split(",") if index],
        faults=map(Fault.parse, options.fault),
        key=env.get("SCRIPTED_KEY"),
        model=options.model,
        replayed=[row for file in options.replay for row in read_rows(file)],
        unknown=options.unknown,
    )
    web.run_app(policy.application(), port=options.port, access_log=None, backlog=1024, print=None)


if __name__ == "__main__":
    main()
