"""The colocated placement: Gym's command line beside the evaluator, here a stand-in for it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.api.wire.plans import Bound
from nhx_gym_operator.api.wire.reports import Outcome
from nhx_gym_operator.evaluator.collect import in_container
from nhx_gym_operator.evaluator.collect.answers import Limit
from nhx_gym_operator.evaluator.collect.growing_rows import GrowingRows
from nhx_gym_operator.evaluator.gym_process import output_mask
from unit.evaluator_fakes import KEY, TOKENS, World, chat, prompt_of, row, target, world

ROWS = [row(number) for number in range(5)]


@pytest.fixture(autouse=True)
def gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, as the only `gym` on PATH."""
    program = tmp_path / "bin" / "gym"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("fake_gym.py")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def behave(monkeypatch: pytest.MonkeyPatch, **behaviour: Any) -> None:
    monkeypatch.setenv("FAKE_GYM", json.dumps(behaviour))


async def finish(w: World, **more: Any) -> Outcome:
    settings: dict[str, Any] = {"placement": Placement.COLOCATED, "target": target(concurrency=1)} | more
    async with asyncio.timeout(240):
        return await w.evaluation(w.plan(ROWS, **settings)).run()


def gym_run(w: World, attempt: int = 1) -> Path:
    return w.paths.attempt(attempt) / "gym_run"


async def test_both_placements_give_the_same_rewards_and_aggregates(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=0) as w:
        w.model.wrong = frozenset({"3"})
        outcome = await finish(w)
    by_name = {aggregate.name: aggregate.value for aggregate in outcome.aggregates}
    assert outcome.state == "Complete"
    assert by_name["gym_reward.reward"] == pytest.approx(0.8)
    assert by_name["runner.gym.pass@1/accuracy"] == pytest.approx(80.0)
    assert outcome.usage["policy"].calls == 10
    names = {path.name for path in gym_run(w).iterdir()}
    assert outcome.warnings == []
    assert {"gym_env.log", "gym_eval.stdout.log", "gym_eval.stderr.log", "gym_validate.log"} <= names
    assert len(list((gym_run(w) / "model_calls").iterdir())) == 10
    first = json.loads((gym_run(w) / "rollouts.jsonl").read_text().splitlines()[0])
    assert first["agent_ref"] == {"name": "simple_agent"} and "_nhx_model_calls" not in first


async def test_one_failed_rollout_keeps_the_good_rows_and_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, fail=["2"])
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, min_coverage=0.8)
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", 0.8, "environment")
    assert "no such table" in outcome.degraded[0]
    aggregates = json.loads((gym_run(w) / "rollouts_aggregate_metrics.json").read_text())
    assert aggregates[0]["agent_metrics"]["rows"] == 8


async def test_failed_rollouts_alone_are_run_again_and_as_often_as_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()

    async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        number = prompt_of(body).split()[-1]
        asked[number] += 1
        status = 503 if number == "1" and asked[number] <= 2 else 200
        return web.json_response(chat(number), status=status)

    behave(monkeypatch, fail=["4"])
    async with world(tmp_path, hosts=0) as w:
        w.model.answer = answer
        outcome = await finish(w, retry_failed=1, min_coverage=0.8)
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", 0.8, "environment")
    assert (outcome.progress.done, outcome.progress.failed) == (8, 2)
    assert asked == {"0": 2, "1": 4, "2": 2, "3": 2, "4": 4}
    aggregates = json.loads((gym_run(w) / "rollouts_aggregate_metrics.json").read_text())
    assert aggregates[0]["agent_metrics"]["rows"] == 8


async def test_a_class_that_a_rule_makes_final_ends_the_job_at_its_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, fail=["2"])
    rule = {"place": "spec.failurePolicy.rules[0]", "action": "FailJob", "classes": ["environment"]}
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, rollout_rules=[rule], retry_failed=3, min_coverage=0.1)
    assert (outcome.state, outcome.reason, outcome.coverage) == ("Failed", "FailurePolicy", 0.4)
    assert "no such table" in outcome.message
    assert len(w.model.requests) == 5 and outcome.aggregates[0].count == 4
    aggregates = json.loads((gym_run(w) / "rollouts_aggregate_metrics.json").read_text())
    assert aggregates[0]["agent_metrics"]["rows"] == 4


async def test_what_a_signal_ended_three_times_in_a_row_was_killed_and_is_no_fault_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, killed=["4"])
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, min_coverage=0.8)
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", 0.8, "killed")
    assert "ended without a result for it, 3 times in a row" in outcome.degraded[0]


async def test_a_result_that_is_too_large_fails_its_rollout_alone_and_is_not_collected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_container, "ROLLOUT", Limit(20_000, 1_000_000))
    behave(monkeypatch, large=["2"], size=70_000)
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, min_coverage=0.8)
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", 0.8, "environment")
    assert "its result is larger than 0.0190735 MiB, the most that is taken" in outcome.degraded[0]
    assert len(w.model.requests) == 10


def test_of_a_row_that_grows_without_end_no_more_is_held_than_is_taken_of_one(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    rows = GrowingRows(file, Limit(100, 20))
    indices = '"_ng_task_index": {}, "_ng_rollout_index": 1}}\n'

    def added(text: str) -> list[Any]:
        with file.open("a") as out:
            out.write(text)
        return [(tuple(key), row if isinstance(row, dict) else row.message) for key, row in rows.added()]

    assert added('{"reward": 1.0, ' + indices.format(0) + '{"note": "') == [
        ((0, 1), {"reward": 1.0, "_ng_task_index": 0, "_ng_rollout_index": 1})
    ]
    for _ in range(20):
        assert added("x" * 90) == []
        assert file.stat().st_size - rows._read < 200
    assert added('", ' + indices.format(7)) == [
        ((7, 1), "its result is larger than 9.53674e-05 MiB, the most that is taken")
    ]
    many = '{"n": [' + "0," * 20 + "0], " + indices.format(8)
    assert added(many) == [((8, 1), "its result is larger than 20 JSON values, the most that is taken")]
    assert [key for key, _ in added("{" + indices.format(9))] == [(9, 1)]


async def test_once_the_tokens_are_used_no_further_call_is_made(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, max_tokens=Bound(value=3 * 120, setting="spec.limits.tokens"))
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "TokenLimitReached", "budget")
    assert len(w.model.requests) == outcome.progress.done == outcome.aggregates[0].count == 3
    failures = [json.loads(line) for line in (gym_run(w) / "rollouts_failures.jsonl").read_text().splitlines()]
    assert [failure["_ng_failure_class"] for failure in failures] == ["budget"] * 7


async def test_a_refused_model_call_is_told_from_a_broken_environment(tmp_path: Path) -> None:
    async def refuse_one(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if prompt_of(body) == "question 4":
            return web.json_response({"error": {"message": "prompt refused"}}, status=403)
        return web.json_response(chat(prompt_of(body).split()[-1]))

    async with world(tmp_path, hosts=0) as w:
        w.model.answer = refuse_one
        outcome = await finish(w, min_coverage=0.8)
    assert (outcome.state, outcome.failure_class) == ("Complete", "model")
    assert "prompt refused" in outcome.degraded[0]


async def test_an_unreal_reward_is_left_out_of_gyms_aggregates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, nan=["0"])
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, min_coverage=0.5)
    assert (outcome.coverage, outcome.aggregates[0].value) == (0.8, 1.0)
    aggregates = json.loads((gym_run(w) / "rollouts_aggregate_metrics.json").read_text())
    assert aggregates[0]["agent_metrics"] == {"mean/reward": 1.0, "pass@1/accuracy": 100.0, "rows": 8}


async def test_a_later_attempt_sends_only_missing_rows_and_aggregates_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, delay=1.2)
    async with world(tmp_path, hosts=0) as w:
        first = await finish(w, target=target(concurrency=1, collection_timeout_s=8))
        assert first.reason == "CollectionTimeout" and 0 < first.progress.done < 10
        calls = len(w.model.requests)
        behave(monkeypatch)
        outcome = await finish(w, attempt=2)
    assert (outcome.state, outcome.progress.done) == ("Complete", 10)
    assert len(w.model.requests) - calls <= 10 - first.progress.done
    aggregates = json.loads((gym_run(w, 2) / "rollouts_aggregate_metrics.json").read_text())
    assert aggregates[0]["agent_metrics"]["rows"] == 10
    assert len(list((gym_run(w, 2) / "model_calls").iterdir())) == 10


@pytest.mark.parametrize(
    ("behaviour", "reason", "words"),
    [
        ({"validate": "fail"}, "HostStartupFailed", "gym_run/gym_validate.log ends:\nunresolved value: x"),
        (
            {"start": "clash"},
            "HostStartupFailed",
            "('127.0.0.1', 8123): address already in use; gym_run/gym_env.log ends",
        ),
        ({"start": "fail"}, "HostStartupFailed", "gym_run/gym_env.log ends:\nImportError: no module named x"),
        ({"start": "hang"}, "StartupTimeout", "still waiting for mcqa; gym_run/gym_env.log ends:\n1 / 2 servers ready"),
    ],
)
async def test_a_gym_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, str], reason: str, words: str
) -> None:
    behave(monkeypatch, **behaviour)
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, target=target(startup_timeout_s=6))
    assert (outcome.state, outcome.reason) == ("Failed", reason)
    assert words in outcome.message


async def test_a_node_that_was_too_busy_for_gym_ends_the_attempt_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, start="busy")
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w)
    assert (outcome.reason, outcome.progress.stage, outcome.is_final) == ("EvaluatorLost", "starting", False)
    assert outcome.message.startswith("the node was too busy for Gym to start: `gym env start` ended with 1")


async def test_a_start_says_until_when_it_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, start="hang")
    async with world(tmp_path, hosts=0) as w:
        plan = w.plan(ROWS, placement=Placement.COLOCATED, target=target(startup_timeout_s=60))
        evaluation = w.evaluation(plan)
        running = asyncio.create_task(evaluation.run())
        said: set[str] = set()
        async with asyncio.timeout(60):
            while not any(words.startswith("Gym's servers are starting") for words in said):
                said.add(evaluation.progress.message)
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert any(words.startswith("Gym checks its configuration; it waits until 20") for words in said), said
    assert any(words.endswith("Z at most (spec.target.gym.startupTimeoutSeconds)") for words in said), said


async def test_a_long_log_is_whole_in_the_bundle_and_its_end_is_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, start="fail", lines=3000)
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w)
    assert "line 2999" in outcome.message and "ImportError" in outcome.message
    assert len(outcome.message) <= 1500
    assert (gym_run(w) / "gym_env.log").read_text().count("line ") == 3000


async def test_servers_that_end_during_collection_are_named_with_their_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, delay=30, crash=1)
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w)
    assert (outcome.state, outcome.reason) == ("Failed", "HostLost")
    assert "gym_run/gym_env.log ends:" in outcome.message and "Process `mcqa` finished unexpectedly!" in outcome.message


async def test_a_collection_that_takes_too_long_shows_what_gym_said_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, delay=60, says="Collecting rollouts")
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, target=target(concurrency=1, collection_timeout_s=3))
    assert outcome.reason == "CollectionTimeout" and "spec.target.gym.collectionTimeoutSeconds" in outcome.message
    assert "gym_run/gym_eval.stderr.log ends:\nCollecting rollouts" in outcome.message


async def test_what_takes_no_notice_is_killed_after_the_grace_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child ignores SIGINT and SIGTERM, and its parent ends at once."""
    behave(monkeypatch, stubborn=True)
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, target=target(concurrency=1, shutdown_grace_s=2))
    assert outcome.state == "Complete"
    (warning,) = outcome.warnings
    assert "1 processes of Gym did not end within 2 s (spec.target.gym.shutdownGraceSeconds)" in warning
    assert "gym_run/gym_env.log ends:" in warning and "stubborn child" in warning
    assert not [line for line in running() if "stubborn child" in line]


@pytest.mark.parametrize(("params", "words"), [({"a": "x\\"}, "ends with a backslash"), ({"a": [{"b c": 1}]}, "'b c'")])
async def test_what_gyms_command_line_cannot_express_is_refused_with_field_and_place(
    tmp_path: Path, params: dict[str, Any], words: str
) -> None:
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, target=target(hydra_params=params))
    assert (outcome.state, outcome.reason) == ("Failed", "EvaluationFailed")
    assert "spec.target.gym.hydraParams" in outcome.message and words in outcome.message


async def test_what_came_by_env_secrets_is_in_no_log_and_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOL_TOKEN", "tool-token-value")
    behave(monkeypatch, start="fail", prints="TOOL_TOKEN")
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, target=target(env_secret_names=["TOOL_TOKEN"]))
    assert "it is ***" in outcome.message and "it is ***" in (gym_run(w) / "gym_env.log").read_text()
    assert "tool-token-value" not in outcome.message + (gym_run(w) / "gym_env.log").read_text()


async def test_white_space_around_a_value_of_env_secrets_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOL", "[x]\r\n")
    behave(monkeypatch, prints="TOOL")
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w, target=target(concurrency=1, env_secret_names=["TOOL"]))
    assert "it is [x]!\n" in (gym_run(w) / "gym_env.log").read_text()
    assert outcome.warnings == ["white space around the value of spec.target.gym.envSecrets.TOOL was left out"]


def test_a_secret_of_several_lines_is_hidden_line_by_line() -> None:
    lines = ["-----BEGIN KEY-----", "c2VjcmV0IG9uZQ==", "c2VjcmV0IHR3bw=="]
    mask = output_mask(target(env_secret_names=["PEM"]), "token", {"PEM": "\n".join(lines)})
    assert mask.text(" ".join(lines)) == "*** *** ***"


async def test_an_image_without_gym_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    async with world(tmp_path, hosts=0) as w:
        outcome = await finish(w)
    assert outcome.state == "Failed" and "PATH" in outcome.message


async def test_no_process_outlives_an_evaluation_that_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, delay=5)
    async with world(tmp_path, hosts=0) as w:
        work = asyncio.create_task(w.evaluation(w.plan(ROWS, placement=Placement.COLOCATED)).run())
        async with asyncio.timeout(120):
            while not w.model.requests:
                await asyncio.sleep(0.05)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(work, 60)
    assert not [line for line in running() if str(tmp_path) in line and "fake_gym.py" in line]


async def test_neither_the_models_key_nor_a_token_is_in_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, fail=["1"])
    async with world(tmp_path, hosts=0) as w:
        await finish(w, min_coverage=0.5)
    for file in w.paths.results.rglob("*"):
        if file.is_file():
            content = file.read_text(errors="replace")
            assert KEY not in content and TOKENS.local_gym not in content, file


def running() -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines
