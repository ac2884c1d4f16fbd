"""The model of all jobs, on this machine: it knows whose each call is, counts it, and fails or waits as planned.

Each job has a key of its own, by which its calls are told apart; a light host's also say which rollout they are of.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from chaos.plan import ROWS, is_wrong
from support.scripted_policy import ScriptedPolicy, prompt_of

ANSWER_SECONDS = 0.3
SLOW_SECONDS = 5.0
FOR_EVER_SECONDS = 3600.0
GARBAGE = "<html>garbage</html>"
_HALF = b'data: {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "4'
_KEY = "sk-chaos-"
_LETTERS = "ABCD"


def rows() -> list[dict[str, Any]]:
    """Multiple choice as mcqa's own rows have it, each with another right letter."""
    return [
        {
            "responses_create_params": {
                "input": [{"role": "user", "content": f"Question {number}: put the right letter into \\boxed{{}}."}]
            },
            "options": [{letter: f"answer {letter} of question {number}"} for letter in _LETTERS],
            "expected_answer": _LETTERS[number % len(_LETTERS)],
            "grading_mode": "strict_single_letter_boxed",
        }
        for number in range(ROWS)
    ]


def key_of(job: str) -> str:
    return _KEY + job


@dataclass
class Call:
    job: str
    rollout: tuple[int, int] | None
    """By task and repeat; None of a host that does not say so."""
    at: float
    """By the monotonic clock."""
    answered: float | None = None


class Model(ScriptedPolicy):
    """`stops` holds up a job's calls once it has so many answers; `failing` fails one call of so many rollouts;
    `always` answers none."""

    def __init__(self) -> None:
        super().__init__(rows(), wrong=[row for row in range(ROWS) if is_wrong(row)])
        self.record: list[Call] = []
        self.stops: dict[str, int] = {}
        self.failing: dict[str, tuple[str, int]] = {}
        """By job: how, and the calls of how many rollouts."""
        self.always: dict[str, str] = {}
        """By job: `status=N`, `garbage` or `half a stream`, to every call."""
        self.failed: list[tuple[str, Any, float]] = []
        """Job, rollout or prompt, and when."""
        self.url = ""
        self._given: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    def is_waiting(self, job: str) -> bool:
        """Whether the job has come as far as its stop."""
        return self._waiting[job] > 0

    def release(self, job: str) -> None:
        self.stops.pop(job, None)

    def calls_of(self, job: str, since: float = 0.0) -> list[Call]:
        return [call for call in list(self.record) if call.job == job and call.at >= since]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        job = request.headers.get("Authorization", "").removeprefix(f"Bearer {_KEY}")
        call = Call(job, _rollout(body.get("user")), time.monotonic())
        self.record.append(call)
        await asyncio.sleep(ANSWER_SECONDS)
        if how := self.always.get(job):
            return await _spoilt(request, how)
        if failure := await self._failure(request, call, prompt_of(body.get("messages"))):
            return failure
        await self._turn(job)
        call.answered = time.monotonic()
        return await super()._chat(request)

    async def _turn(self, job: str) -> None:
        self._waiting[job] += 1
        try:
            # The plan's own thread takes the stop away.
            while self._given[job] >= self.stops.get(job, 1 << 30):
                await asyncio.sleep(0.05)
        finally:
            self._waiting[job] -= 1
        self._given[job] += 1

    async def _failure(self, request: web.Request, call: Call, prompt: str) -> web.Response | None:
        how, left = self.failing.get(call.job, ("", 0))
        what = call.rollout or prompt
        if not left or any(entry[:2] == (call.job, what) for entry in self.failed):
            return None
        self.failing[call.job] = (how, left - 1)
        self.failed.append((call.job, what, time.monotonic()))
        if how == "slow":
            await asyncio.sleep(SLOW_SECONDS)
            return None
        if how == "reset" and request.transport is not None:
            request.transport.abort()
        return _refusal(how)


def _refusal(how: str) -> web.Response:
    status = int(how.partition("=")[2] or 500)
    return web.json_response({"error": {"message": "a fault of the plan", "code": status}}, status=status)


async def _spoilt(request: web.Request, how: str) -> web.StreamResponse:
    if how == "garbage":
        return web.Response(text=GARBAGE, content_type="application/json")
    if how != "half a stream":
        return _refusal(how)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(_HALF)
    await asyncio.sleep(FOR_EVER_SECONDS)
    return response


def _rollout(user: Any) -> tuple[int, int] | None:
    """Of `<uid>/<task>-<repeat>`."""
    if not isinstance(user, str) or "/" not in user:
        return None
    task, _, repeat = user.partition("/")[2].partition("-")
    return int(task), int(repeat)


@contextmanager
def served(host: str) -> Iterator[Model]:
    """The model, in a thread of its own, at an address that pods reach."""
    model = Model()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="model", daemon=True)
    thread.start()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(model.application(), access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, host, 0, backlog=1024).start()
        model.url = f"http://{host}:{runner.addresses[0][1]}/v1"
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(timeout=30)
    try:
        yield model
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)


def rows_text() -> str:
    return "".join(json.dumps(row) + "\n" for row in rows())
