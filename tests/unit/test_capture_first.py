"""A model call is captured before its caller has the answer: at a rollout's end all its calls are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from nhx_gym_operator.api.gym_models import search_path

GYM = """
import re
_ROLLOUT_PATH_RE = re.compile("^/ng-rollout/(?P<rollout_id>[^/]+)(?P<rest>/.*)$")
class _CaptureMiddleware:
    def __init__(self, app, *, store, model_server_name):
        self._app, self._store = app, store
    async def __call__(self, scope, receive, send):
        ends = []
        async def hold_the_end_back(message):
            if message["type"] == "http.response.body" and not message.get("more_body"):
                ends.append(message)
            else:
                await send(message)
        await self._app(scope, receive, hold_the_end_back)
        self._store.append(scope["path"])
        for message in ends:
            await send(message)
"""
"""As much of nemo_gym 0.5.0 as is changed, with what it promises: the end of an answer waits for the capture."""
SERVER = """
import asyncio, json
from nemo_gym.base_responses_api_model import _CaptureMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

async def parts():
    yield b"first"
    yield b"last"

async def pass_on(request, call_next):
    return await call_next(request)

ANSWERS = {
    "/json": lambda request: JSONResponse("x" * 3_000_000),
    "/error": lambda request: JSONResponse("no", status_code=500),
    "/parts": lambda request: StreamingResponse(parts(), headers={"Content-Length": "9"}),
    "/stream": lambda request: StreamingResponse(parts(), media_type="text/event-stream"),
}
captured = []
splits = Middleware(BaseHTTPMiddleware, dispatch=pass_on)
captures = Middleware(_CaptureMiddleware, store=captured, model_server_name="policy")
app = Starlette(routes=[Route(*answer) for answer in ANSWERS.items()], middleware=[splits, captures, splits])

async def sent_of(path):
    requests = [{"type": "http.request", "body": b"", "more_body": False}]
    sent = []

    async def receive():
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.start":
            sent.append(dict(message["headers"]).get(b"content-length", b"").decode())
        else:
            sent.append([len(message["body"]), path in captured])

    await app({"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}, receive, send)
    return sent

print(json.dumps({path: asyncio.run(sent_of(path)) for path in ANSWERS}))
"""
"""A model server with Gym's order of middlewares: within the one that captures there is one that splits answers."""


class Answer(NamedTuple):
    """`parts` holds the bytes of each, and whether the call was captured when it was sent."""

    stated_length: str
    parts: list[tuple[int, bool]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    package = tmp_path_factory.mktemp("gym") / "nemo_gym"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "rollout_correlation.py").write_text("rollout_context = None")
    (package / "base_responses_api_model.py").write_text(GYM)
    environment = {**os.environ, "PYTHONPATH": search_path(str(package.parent))}
    command = [sys.executable, "-c", SERVER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return {path: Answer(length, parts) for path, (length, *parts) in json.loads(done.stdout).items()}


@pytest.mark.parametrize("kind", ["/json", "/error", "/parts"])
def test_nobody_has_a_whole_answer_to_a_call_that_is_not_captured(answers: dict[str, Answer], kind: str) -> None:
    length, parts = answers[kind]
    assert sum(size for size, _ in parts) == int(length) > 0
    assert sum(size for size, captured in parts if not captured) < int(length)


def test_a_stream_passes_as_it_comes(answers: dict[str, Answer]) -> None:
    length, parts = answers["/stream"]
    assert length == ""
    assert [part for part in parts if part[0]] == [[5, False], [4, False]]
