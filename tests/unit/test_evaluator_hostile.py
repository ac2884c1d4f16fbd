"""What a host may answer, by malice or by accident: it costs that rollout, and never the evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nhx_gym_operator.api.outcome import decode_outcome
from unit.evaluator_fakes import FakeHost, row, world
from unit.test_evaluator_run import finish

ROWS = [row(number) for number in range(3)]
HALF = "half \ud800 of a pair"
"""What a server writes that cuts text in the middle of an emoji."""

Change = Callable[[dict[str, Any]], dict[str, Any]]


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@dataclass
class StrangeHost(FakeHost):
    """Changes what it says of the row whose answer is 0, and of the aggregates."""

    change: Change = dict
    metrics: dict[str, Any] | None = None

    async def _rollout(self, example: dict[str, Any]) -> dict[str, Any]:
        answer = await super()._rollout(example)
        return self.change(answer) if example["expected_answer"] == "0" else answer

    async def _aggregate(self, request: web.Request) -> web.Response:
        if self.metrics is None:
            return await super()._aggregate(request)
        return web.Response(text=json.dumps(self.metrics), content_type="application/json")


def result(**changes: Any) -> Change:
    return lambda answer: {"results": [answer["results"][0] | changes]}


def error(message: str) -> Change:
    return lambda answer: {"error": {"code": "internal", "message": message}}


async def run(directory: Path, host: StrangeHost) -> Any:
    async with world(directory, hosts=0) as w:
        from unit.evaluator_fakes import serving

        async with serving(host.app()) as host.url:
            outcome = await finish(w.evaluation(w.plan(ROWS, min_coverage=0.5)), host)
        assert decode_outcome(w.paths.termination_log.read_bytes()).state == outcome.state
        for file in w.paths.results.rglob("*.json"):
            json.loads(file.read_text(), parse_constant=pytest.fail)
    return outcome


@pytest.mark.parametrize("response", ["text", ["a"], 5, True])
async def test_a_response_of_another_shape(tmp_path: Path, response: Any) -> None:
    outcome = await run(tmp_path, StrangeHost(change=result(response=response)))
    assert (outcome.state, outcome.coverage) == ("Complete", 1.0)


@pytest.mark.parametrize(
    "change",
    [result(note=HALF), result(**{HALF: 1}), result(response={"output": HALF, "usage": {HALF: 1}})],
)
async def test_half_of_a_surrogate_pair_in_a_result(tmp_path: Path, change: Change) -> None:
    outcome = await run(tmp_path, StrangeHost(change=change))
    assert (outcome.state, outcome.coverage) == ("Complete", 1.0)


@pytest.mark.parametrize(
    "change",
    [
        error(HALF),
        result(reward=HALF),
        result(_ng_failure_class=HALF),
        result(_ng_failure_class="x" * 100_000),
        result(_ng_failure_class="x", error=HALF),
        result(note=deep(3000)),
        result(note=deep(300)),
        result(response=deep(300)),
        result(reward=deep(600)),
    ],
)
async def test_a_failure_in_strange_words(tmp_path: Path, change: Change) -> None:
    outcome = await run(tmp_path, StrangeHost(change=change))
    assert (outcome.state, outcome.coverage) == ("Complete", pytest.approx(2 / 3))
    assert outcome.failure_class in ("environment", "killed")
    assert len(outcome.degraded[0]) < 1000


@pytest.mark.parametrize(
    "metrics",
    [
        {"agent_metrics": {HALF: 1.0, "x": 1e300 * 10, "n" * 5000: 2, "big": 10**30, "deep": deep(20), "s": HALF}},
        {"agent_metrics": {"x": 1.0}, "key_metrics": "none", "group_level_metrics": 7},
        {"agent_metrics": [1]},
        {"agent_metrics": {"x": deep(3000)}},
    ],
)
async def test_aggregates_of_another_shape(tmp_path: Path, metrics: dict[str, Any]) -> None:
    outcome = await run(tmp_path, StrangeHost(metrics=metrics))
    assert (outcome.state, outcome.coverage) == ("Complete", 1.0)
    assert outcome.aggregates[0].name == "gym_reward.reward"
    assert all(len(aggregate.name) <= 256 for aggregate in outcome.aggregates)
