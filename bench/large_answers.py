"""The largest answers that a host may give, many at once: `python bench/large_answers.py KIND [ROLLOUTS]`.

KIND is what they are made of: `text`, `values`, or `calls` (captured model calls). Prints the largest resident set of
the evaluator in MiB, from its start until its bundle is written. The host is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web

from nhx_gym_operator.api.wire.endpoints import HOST_ANSWER_LIMIT_BYTES
from unit.evaluator_fakes import FakeHost, evaluator_url, row, serving, target, world

AT_ONCE = 64


class LargeHost(FakeHost):
    """Answers each example alike, without a model call."""

    kind = "text"

    async def _body(self, example: dict[str, Any]) -> bytes:
        return BODIES[self.kind]

    async def _aggregate(self, request: web.Request) -> web.Response:
        return web.json_response({"agent_metrics": {"x": 1.0}})


def _body(**content: Any) -> bytes:
    return json.dumps({"results": [{"reward": 1.0, **content}]}, ensure_ascii=False).encode()


BODIES = {
    # Two bytes each as UTF-8, six in the journal's line.
    "text": _body(response="é" * (HOST_ANSWER_LIMIT_BYTES // 2 - 100)),
    "values": _body(response={"output": [[] for _ in range(490_000)]}),
    "calls": _body(_nhx_model_calls=[{"request": "x" * 1000, "response": {"usage": {}}}] * 30_000),
}


def _serve(kind: str, port: Any) -> None:
    async def run() -> None:
        host = LargeHost()
        host.kind = kind
        async with serving(host.app()) as url:
            port.send(url)
            await asyncio.sleep(3600)

    asyncio.run(run())


async def _run(folder: Path, kind: str, rollouts: int) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(kind, theirs), daemon=True)
    process.start()
    url = await asyncio.to_thread(ours.recv)
    async with world(folder, hosts=0) as w:
        rows = [row(number) for number in range(rollouts)]
        evaluation = w.evaluation(w.plan(rows, target=target(num_repeats=1, concurrency=AT_ONCE)))
        work = asyncio.create_task(evaluation.run())
        await FakeHost(url=url, evaluator=await evaluator_url(evaluation)).register()
        outcome = await work
    process.terminate()
    print(outcome.state, outcome.reason, outcome.progress.done, outcome.message, file=sys.stderr)


def main(kind: str, rollouts: int = 40) -> int:
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), kind, rollouts))
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    print(int(peak[1]) // 1024)
    return 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
