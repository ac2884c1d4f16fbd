"""What a model call costs on its way through the gateway: `make bench-gateway`. Prints a table.

    python bench/gateway.py [CALLS]

Model server, gateway and caller are processes of their own on loopback, and the server answers at once. Direct calls
and calls through the gateway take turns in one run, so that whatever else the machine does falls on both. Ends with 1,
and with it `make nightly`, if a call with one answer costs a millisecond of the gateway's CPU, or two of its caller's
time, each time that it is measured; a stream costs by its events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from nhx_gym_operator.api.wire.endpoints import ROLLOUT_HEADER
from nhx_gym_operator.evaluator.gateway import ModelGateway
from nhx_gym_operator.evaluator.http_api import Backends, make_app
from nhx_gym_operator.evaluator.http_api import serving as serving_as_an_evaluator
from nhx_gym_operator.evaluator.http_server import client
from nhx_gym_operator.evaluator.model_keys import ModelKeys
from nhx_gym_operator.evaluator.progress import ProgressState
from nhx_gym_operator.evaluator.rollout_calls import RolloutCalls
from nhx_gym_operator.evaluator.rollouts import RolloutKey
from unit.evaluator_fakes import MODEL, TOKENS, chat, paths_in, route, serving

CALLS = 2000
ROUND = 100
"""Calls of one kind in a row."""
AT_ONCE = 8
EVENTS = 50
MOST_CPU_MS, MOST_ADDED_MS = 1.0, 2.0
TRIES = 3
"""To be within these bounds: whatever else the machine does makes a call cost more, and never less."""
_TEXT = "The quick brown fox jumps over the lazy dog. " * 90
_ASKED = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": _TEXT}]}).encode()
_STREAMED = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": _TEXT}]}).encode()
_ANSWER = json.dumps(chat(_TEXT)).encode()
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"The quick brown fox "}}]}\n\n'
_LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\n'


def main(calls: int = CALLS) -> int:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        model, _ = stack.enter_context(_process(_model))
        gateway, pid = stack.enter_context(_process(_gateway, folder, model))
        for _ in range(TRIES):
            rows = asyncio.run(_measured(model, gateway, pid, calls))
            _print(rows)
            _, direct, through, cpu = rows[0]
            if cpu < MOST_CPU_MS and through - direct < MOST_ADDED_MS:
                return 0
    print(f"bounds: {MOST_CPU_MS:g} ms of CPU and {MOST_ADDED_MS:g} ms added", file=sys.stderr)
    return 1


def _print(rows: list[tuple[str, float, float, float]]) -> None:
    print("\n| 4 kB each way | direct p50 ms | through the gateway p50 ms | added ms | gateway's CPU ms a call |")
    print("|---|---|---|---|---|")
    for name, direct, through, cpu in rows:
        print(f"| {name} | {direct:.2f} | {through:.2f} | {through - direct:.2f} | {cpu:.2f} |", flush=True)


async def _measured(model: str, gateway: str, pid: int, calls: int) -> list[tuple[str, float, float, float]]:
    headers = {"Authorization": f"Bearer {TOKENS.hosts[0]}", ROLLOUT_HEADER: "0-0", "Content-Type": "application/json"}
    through = f"{gateway}/models/policy/v1/chat/completions"
    direct = f"{model}/v1/chat/completions"
    rows = []
    async with aiohttp.ClientSession(headers=headers) as session:
        for name, body in (("one answer", _ASKED), (f"a stream of {EVENTS} events", _STREAMED)):

            async def call(url: str, body: bytes = body) -> float:
                started = time.perf_counter()
                async with session.post(url, data=body) as answer:
                    await answer.read()
                    assert answer.status == 200, await answer.text()
                return time.perf_counter() - started

            await _in_a_row(call, through, ROUND)
            seconds: dict[str, list[float]] = {direct: [], through: []}
            for _ in range(max(1, calls // ROUND)):
                for url, taken in seconds.items():
                    taken += await _in_a_row(call, url, ROUND)
            before = _cpu_seconds(pid)
            await asyncio.gather(*(_in_a_row(call, through, calls // AT_ONCE) for _ in range(AT_ONCE)))
            cpu = (_cpu_seconds(pid) - before) / (calls // AT_ONCE * AT_ONCE)
            medians = [1000 * statistics.median(taken) for taken in seconds.values()]
            rows.append((name, medians[0], medians[1], 1000 * cpu))
    return rows


async def _in_a_row(call: Callable[[str], Coroutine[Any, Any, float]], url: str, times: int) -> list[float]:
    return [await call(url) for _ in range(times)]


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process: fields 14 and 15 of proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _process(serve: Callable[..., None], *arguments: object) -> Iterator[tuple[str, int]]:
    """A server in a process of its own; yields its address and process id."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv(), process.pid or 0
    finally:
        process.terminate()
        process.join()


def _model(told: Connection) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if (await request.json()).get("stream"):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for _ in range(EVENTS):
                await response.write(_EVENT)
            await response.write(_LAST)
            return response
        return web.Response(body=_ANSWER, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    asyncio.run(_until_ended(serving(app), told))


def _gateway(told: Connection, folder: str, model: str) -> None:
    async def serve() -> None:
        calls = RolloutCalls()
        calls.rollout_began(RolloutKey(0, 0), 0)
        async with client() as session:
            keys = ModelKeys(paths_in(Path(folder)).model_keys)
            gateway = ModelGateway([route(f"{model}/v1")], keys, session, calls)
            await _until_ended(_served(make_app(Backends(TOKENS, gateway, ProgressState(1)))), told)

    asyncio.run(serve())


@contextlib.asynccontextmanager
async def _served(app: web.Application) -> AsyncIterator[str]:
    """As an evaluator does."""
    async with serving_as_an_evaluator(app, host="127.0.0.1", port=0, canary_port=0) as port:
        yield f"http://127.0.0.1:{port}"


async def _until_ended(server: contextlib.AbstractAsyncContextManager[str], told: Connection) -> None:
    async with server as address:
        told.send(address)
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
