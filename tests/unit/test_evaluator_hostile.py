"""What a host may answer, by malice or by accident: it costs that rollout, and never the evaluation."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nhx_gym_operator.api.outcome import decode_outcome
from nhx_gym_operator.api.wire.endpoints import HOST_ANSWER_LIMIT_BYTES
from nhx_gym_operator.api.wire.reports import Outcome
from nhx_gym_operator.evaluator import scoring, trials
from nhx_gym_operator.evaluator.collect import through_hosts
from nhx_gym_operator.evaluator.collect.answers import Answers, Limit
from nhx_gym_operator.evaluator.memory import Room
from nhx_gym_operator.evaluator.untrusted import gym_aggregates, readable, strict_json
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
    raw: bytes | None = None
    """What it answers instead."""
    for_ever: bool = False
    """It never ends, but sends its heartbeats."""
    metrics: dict[str, Any] | None = None

    async def _body(self, example: dict[str, Any]) -> bytes:
        is_strange = example["expected_answer"] == "0"
        return self.raw if is_strange and self.raw is not None else await super()._body(example)

    async def _rollout(self, example: dict[str, Any]) -> dict[str, Any]:
        answer = await super()._rollout(example)
        return self.change(answer) if example["expected_answer"] == "0" else answer

    async def _run(self, request: web.Request) -> web.StreamResponse:
        (example,) = (await request.json())["examples"]
        if not (self.for_ever and example["expected_answer"] == "0"):
            return await super()._run(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async def _aggregate(self, request: web.Request) -> web.Response:
        if self.metrics is None:
            return await super()._aggregate(request)
        return web.Response(text=json.dumps(self.metrics), content_type="application/json")


def result(**changes: Any) -> Change:
    return lambda answer: {"results": [answer["results"][0] | changes]}


def error(message: str) -> Change:
    return lambda answer: {"error": {"code": "internal", "message": message}}


async def run(directory: Path, host: StrangeHost) -> Outcome:
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


HUGE = 10**400
"""An integer that is no float."""


@pytest.mark.parametrize(
    "change",
    [
        result(_nhx_model_calls=[1, None, "x", [[]]]),
        result(_nhx_model_calls={"a": 1}),
        result(_nhx_model_calls=[{"started_at": HUGE, "completed_at": 1e308, "latency_ttft_ms": HUGE}]),
        result(_ng_attempt_index=10**300),
        result(_ng_attempt_index="../../x"),
        result(_ng_task_index=2, _ng_rollout_index=1),
        result(response={"output": "x", "usage": {"prompt_tokens": HUGE, "total_tokens": HUGE}}),
        result(reward="0.5"),
        result(reward=True),
    ],
)
async def test_what_would_end_the_sdks_scoring_is_taken_out_of_a_result(tmp_path: Path, change: Change) -> None:
    outcome = await run(tmp_path, StrangeHost(change=change))
    assert (outcome.state, outcome.coverage, outcome.progress.done) == ("Complete", 1.0, 6)


@pytest.mark.parametrize("reward", [1e200, -1e101, HUGE, 10**200, "nan", "-inf", [1], None, {}])
async def test_a_reward_that_no_mean_can_hold_is_a_failure_and_no_number(tmp_path: Path, reward: Any) -> None:
    outcome = await run(tmp_path, StrangeHost(change=result(reward=reward)))
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", pytest.approx(2 / 3), "environment")
    assert "the verifier returned reward" in outcome.degraded[0]
    assert (outcome.aggregates[0].value, outcome.aggregates[0].std_dev) == (1.0, 0.0)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"error": ' + b'{"a":' * 600 + b"1" + b"}" * 601,
        b'{"results": [{"reward": ' + b"1" * 5000 + b"}]}",
        b'{"results": [{"reward": 1.0}, {"reward": 1.0}]}',
        b'{"results": []}',
        b'{"results": 1}',
        b'"done"',
        b"\xff\xfe{}",
    ],
)
async def test_an_answer_that_is_none_fails_its_rollout_at_once(tmp_path: Path, raw: bytes) -> None:
    host = StrangeHost(raw=raw)
    outcome = await run(tmp_path, host)
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", pytest.approx(2 / 3), "environment")
    assert sorted(host.rollouts) == [(task, repeat) for task in range(3) for repeat in (0, 1)]


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (b'"' + b"x" * HOST_ANSWER_LIMIT_BYTES + b'"', "is larger than 32 MiB, the most that is taken"),
        (b"[" + b"1," * 1_000_000 + b"1]", "holds more than 1000000 JSON values, the most that are taken"),
    ],
    ids=["bytes", "values"],
)
async def test_an_answer_that_is_too_large_fails_its_rollout_by_the_limit(
    tmp_path: Path, note: bytes, words: str
) -> None:
    host = StrangeHost(raw=b'{"results": [{"reward": 1.0, "note": ' + note + b"}]}")
    outcome = await run(tmp_path, host)
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", pytest.approx(2 / 3), "environment")
    assert words in outcome.degraded[0]
    assert len(host.rollouts) == 6


async def test_what_stands_in_a_text_are_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(through_hosts, "ROLLOUT", Limit(1 << 25, 50_000))
    outcome = await run(tmp_path, StrangeHost(change=result(note='so, "it" said: [yes], {or}: no\\' * 20_000)))
    assert (outcome.state, outcome.coverage) == ("Complete", 1.0)


async def test_an_answer_is_never_unpacked(tmp_path: Path) -> None:
    packed = zlib.compress(json.dumps({"results": [{"reward": 1.0}]}).encode())
    outcome = await run(tmp_path, StrangeHost(raw=packed, headers={"Content-Encoding": "deflate"}))
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", pytest.approx(2 / 3), "environment")


async def test_answers_that_find_no_room_wait_for_it_also_when_some_of_them_break_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through_hosts, "Answers", lambda: Answers(read_room=1, taken_room=1))
    monkeypatch.setattr(through_hosts, "RECONNECT_DELAY_S", 0.0)
    outcome = await run(tmp_path, StrangeHost(raw=b'{"results": [{"reward": '))
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", pytest.approx(2 / 3), "killed")


async def test_room_is_never_given_twice_and_in_the_order_of_asking() -> None:
    room, used, most, order = Room(100), 0, 0, []

    async def take(number: int, size: int) -> None:
        nonlocal used, most
        async with room.taken(size):
            order.append(number)
            used += min(size, 100)
            most = max(most, used)
            await asyncio.sleep(0.001)
            used -= min(size, 100)

    sizes = [30, 90, 1, 500, 40, 60, 60]
    async with asyncio.timeout(30):
        waiting = [asyncio.create_task(take(number, size)) for number, size in enumerate(sizes)]
        await asyncio.sleep(0)
        waiting[4].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with room.taken(100):
            pass
    assert (most, order) == (100, [0, 1, 2, 3, 5, 6])


async def test_a_host_that_never_ends_a_rollout_is_not_waited_for_though_its_heartbeats_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through_hosts, "ROLLOUT_TIMEOUT_S", 1.0)
    outcome = await run(tmp_path, StrangeHost(for_ever=True))
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", pytest.approx(2 / 3), "timeout")
    assert "gym host 0 did not end it within 1 s" in outcome.degraded[0]


async def test_what_a_terminal_would_act_upon_is_spelt_out_in_messages_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    escapes = "\x1b[2Jgone\r\x9b31m\u202e"
    with caplog.at_level(logging.INFO):
        outcome = await run(tmp_path, StrangeHost(change=result(_ng_failure_class="x", error=escapes)))
    said = [*outcome.degraded, *(record.getMessage() for record in caplog.records)]
    assert any(r"\x1b[2Jgone\r\x9b31m\u202e" in words for words in said)
    assert not [words for words in said if set(words) & set(escapes) - set("[2Jgone31m")]


def test_only_what_is_no_text_is_spelt_out() -> None:
    assert readable("näh 😀\n\tx") == "näh 😀\n    x"
    assert readable("\x00\x07\ud800\u2028") == r"\x00\x07?\u2028"


def test_integers_that_gym_could_not_have_written_become_floats_or_null() -> None:
    values = [2**64 - 1, -(2**63), 10**30, HUGE, True, float("nan")]
    assert strict_json(values) == [2**64 - 1, -(2**63), 1e30, None, True, None]


STATISTICS = ("mean", "max", "min", "median", "std")


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"a": 1.0, **{f"{each}/y": 1e200 for each in STATISTICS}}, "5 aggregates further from 0 than 1e+100"),
        ({"a": 1.0, "y": HUGE}, None),
        ({"a": 1.0, **{f"y{number}": 1 for number in range(2500)}}, "501 aggregates beyond the first 2000"),
    ],
)
async def test_aggregates_that_would_end_the_scoring_are_left_out_and_the_job_says_so(
    tmp_path: Path, metrics: dict[str, Any], words: str | None
) -> None:
    outcome = await run(tmp_path, StrangeHost(metrics={"agent_metrics": metrics}))
    assert (outcome.state, outcome.coverage) == ("Complete", 1.0)
    assert outcome.degraded == ([f"runner.gym.* lacks {words}"] if words else [])
    assert [each.value for each in outcome.aggregates if each.name == "runner.gym.a"] == [1.0]


async def test_aggregates_that_are_too_large_are_missing_by_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through_hosts, "AGGREGATES", Limit(1 << 10, 1 << 10))
    outcome = await run(tmp_path, StrangeHost(metrics={"agent_metrics": {"x": 1.0, "note": "x" * 2000}}))
    assert outcome.state == "Complete"
    assert "runner.gym.* is missing" in outcome.degraded[0] and "0.000976562 MiB" in outcome.degraded[0]


@pytest.mark.parametrize("entries", [None, {}, [1], [{}], [{"agent_metrics": []}], [{"agent_metrics": deep(200)}]])
def test_aggregates_that_are_none_are_refused(entries: Any) -> None:
    with pytest.raises(ValueError, match="aggregates"):
        gym_aggregates(entries)


async def test_a_result_that_the_sdk_cannot_read_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = trials.trials_from_rollouts

    def picky(file: Path, *arguments: Any, **options: Any) -> Any:
        if "poison" in file.read_text():
            raise AttributeError("no such thing")
        return read(file, *arguments, **options)

    monkeypatch.setattr(trials, "trials_from_rollouts", picky)
    outcome = await run(tmp_path, StrangeHost(change=result(note="poison")))
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", pytest.approx(2 / 3), "environment")
    assert "the SDK cannot read its result: AttributeError: no such thing" in outcome.degraded[0]
    assert (outcome.progress.done, outcome.progress.failed, outcome.progress.mean_reward) == (4, 2, 1.0)
    assert outcome.aggregates[0].count == 4


async def test_large_results_are_scored_a_few_at_a_time_and_a_task_is_in_the_bundle_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "BYTES_AT_ONCE", 1000)
    outcome = await run(tmp_path, StrangeHost())
    assert (outcome.state, outcome.coverage, outcome.aggregates[0].count) == ("Complete", 1.0, 6)
    bundle = tmp_path / "results" / "attempt-1"
    lines = {name: (bundle / name).read_text().splitlines() for name in scoring.BUNDLE_LISTS}
    assert {name: len(found) for name, found in lines.items()} == {
        "tasks.jsonl": 3,
        "trials.jsonl": 6,
        "scores.jsonl": 6,
    }
    assert [json.loads(line)["metadata"]["row_index"] for line in lines["scores.jsonl"]] == [0, 0, 1, 1, 2, 2]
