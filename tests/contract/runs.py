"""The same five rows, twice each, as this product runs them and as the SDK's own runner does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
from aiohttp import web
from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator
from nhx_evals_sdk.agent_eval.results import AgentEvalResult
from nhx_evals_sdk.agent_eval.runtimes.gym import discover_gym_tasks
from nhx_evals_sdk.agent_eval.runtimes.gym.sandboxed import SandboxedGymAgentTaskRunner, SandboxedGymRuntimeConfig
from nhx_evals_sdk.agent_eval.tasks import AgentEvalRunConfig

from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.api.wire.endpoints import HostState
from nhx_gym_operator.api.wire.plans import EvaluatorPlan
from nhx_gym_operator.api.wire.reports import Outcome
from unit.evaluator_fakes import FakeHost, FakeModel, World, evaluator_url, row, serving, target, world, write_rows

ROWS = [row(number) for number in range(5)]
REPEATS = 2
WRONG = "3"
BROKEN = "2"
METRICS = {
    **{f"{statistic}/input_tokens": 100.0 for statistic in ("mean", "min", "max", "median")},
    "std/input_tokens": 0.0,
    "mean/lonely": 1.5,
    "pass@1/accuracy": 80.0,
    "mean/reward": 0.8,
    "reward": 0.8,
    "note": "no number",
}
"""What Gym's agent reports at the end: a whole family of statistics, one alone, a single number, its own reward."""


@dataclass(frozen=True)
class Finished:
    """One evaluation that is over."""

    plan: EvaluatorPlan
    outcome: Outcome
    bundle: Path
    most_in_flight: int = 0
    sent: tuple[tuple[int, int], ...] = ()
    """Rollouts that reached the gym host, by `_ng_task_index` and `_ng_rollout_index`."""
    shut_down: bool = False
    """The gym host was told to end."""
    commands: tuple[list[str], ...] = ()
    """Gym's command lines, of a colocated run."""

    @property
    def gym_run(self) -> Path:
        return self.bundle / "gym_run"

    def json(self, name: str) -> Any:
        return json.loads((self.bundle / name).read_text())

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.bundle / name).read_text().splitlines()]


def break_one(example: dict[str, Any], text: str) -> float:
    """A verifier that raises for one row."""
    if example["expected_answer"] == BROKEN:
        raise KeyError("no such table")
    return float(text == example["expected_answer"])


def sandboxed(
    directory: Path,
    verify: Callable[[dict[str, Any], str], Any] | None = None,
    delay_s: float = 0.05,
    rows: list[dict[str, Any]] = ROWS,
    **plan: Any,
) -> Finished:
    """Through a gym host whose rollouts take `delay_s`."""

    async def aggregate(_: FakeHost, __: web.Request) -> web.Response:
        return web.json_response({"agent_metrics": METRICS, "key_metrics": {}, "group_level_metrics": []})

    async def play() -> Finished:
        async with world(directory) as w:
            (host,) = w.hosts
            host.delay_s = delay_s
            host.verify = verify or host.verify
            asked = w.plan(rows, **plan)
            w.model.wrong = frozenset({WRONG})
            evaluation = w.evaluation(asked)
            work = asyncio.create_task(evaluation.run())
            host.evaluator = await evaluator_url(evaluation)
            await host.register(HostState.STARTING)
            await host.register()
            async with asyncio.timeout(120):
                outcome = await work
            bundle = w.paths.attempt(asked.attempt)
            return Finished(asked, outcome, bundle, host.most_in_flight, tuple(host.rollouts), host.shut_down)

    with mock.patch.object(FakeHost, "_aggregate", aggregate):
        return asyncio.run(play())


def colocated(directory: Path, **plan: Any) -> Finished:
    """Beside Gym's command line, here a stand-in that writes down how it is called."""

    async def play(w: World) -> Finished:
        w.model.wrong = frozenset({WRONG})
        asked = w.plan(ROWS, **{"placement": Placement.COLOCATED, "target": target(concurrency=1)} | plan)
        async with asyncio.timeout(240):
            outcome = await w.evaluation(asked).run()
        lines = calls.read_text().splitlines() if calls.exists() else []
        commands = tuple(json.loads(line) for line in lines)
        return Finished(asked, outcome, w.paths.attempt(asked.attempt), commands=commands)

    async def in_world() -> Finished:
        async with world(directory, hosts=0) as w:
            return await play(w)

    calls = directory / "calls.jsonl"
    with _recorded_gym(directory / "bin", calls):
        return asyncio.run(in_world())


@contextlib.contextmanager
def _recorded_gym(folder: Path, calls: Path) -> Iterator[None]:
    stand_in = Path(__file__).parents[1] / "unit" / "fake_gym.py"
    program = folder / "gym"
    folder.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"with open({str(calls)!r}, 'a') as file: print(json.dumps(sys.argv[1:]), file=file)\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, {str(stand_in)!r}, *sys.argv[1:]])\n"
    )
    program.chmod(0o755)
    with mock.patch.dict(os.environ, {"PATH": f"{folder}:{os.environ['PATH']}"}):
        yield


def sdk_alone(directory: Path) -> AgentEvalResult:
    """The SDK's own sandboxed runner against the same host, without anything of this product."""

    async def play() -> AgentEvalResult:
        model, host = FakeModel(wrong=frozenset({WRONG})), FakeHost()
        routes = web.Application()
        routes.add_subapp("/models/policy", model.app())
        async with serving(routes) as host.evaluator, serving(host.app()) as host.url:
            headers = {"Authorization": f"Bearer {host.token}"}

            async def collect(examples: list[dict[str, Any]]) -> list[Any]:
                results = []
                async with aiohttp.ClientSession(headers=headers) as session:
                    for example in examples:
                        body = {"examples": [example]}
                        async with session.post(f"{host.url}/rollouts/run", json=body) as answer:
                            results += (await answer.json())["results"]
                return results

            config = SandboxedGymRuntimeConfig(
                rollout_url=f"{host.url}/rollouts/run", agent_ref_name="mcqa_simple_agent", num_repeats=REPEATS
            )
            result = await AgentEvaluator().run(
                tasks=discover_gym_tasks(write_rows(directory / "dataset.jsonl", ROWS)),
                target=SandboxedGymAgentTaskRunner(config=config, collect=collect),
                config=AgentEvalRunConfig(work_dir=directory / "run"),
            )
            result.persist()
            return result

    return asyncio.run(play())
