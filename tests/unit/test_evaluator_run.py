"""Whole evaluations in this process, with a model server and gym hosts on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections import Counter
from copy import deepcopy
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator
from nhx_evals_sdk.metrics.protocol import MetricInput, MetricResult
from nhx_evals_sdk.metrics.runner_rewards import GymRewardMetric
from nhx_evals_sdk.values.evidence import CandidateEvidence

from nhx_gym_operator.api.outcome import decode_outcome
from nhx_gym_operator.api.wire.endpoints import HostState, ModelUsage, Stage
from nhx_gym_operator.api.wire.plans import Bound
from nhx_gym_operator.api.wire.reports import Outcome
from nhx_gym_operator.evaluator import collection, http_server
from nhx_gym_operator.evaluator.collect import through_hosts
from nhx_gym_operator.evaluator.collection import Collection
from nhx_gym_operator.evaluator.journal import Journal
from nhx_gym_operator.evaluator.metering import calls_of
from nhx_gym_operator.evaluator.preparation import Preparation
from nhx_gym_operator.evaluator.run import Evaluation
from nhx_gym_operator.evaluator.scoring import _Parts
from unit.evaluator_fakes import (
    FakeHost,
    World,
    chat,
    evaluator_url,
    make_plan,
    prompt_of,
    route,
    row,
    serving,
    target,
    world,
    write_rows,
)
from unit.test_evaluator_stage import FILES, write
from unit.test_evaluator_stage import stage as stage_folder

ROWS = [row(number) for number in range(5)]
ALL = [(task, repeat) for task in range(5) for repeat in (0, 1)]


async def finish(evaluation: Evaluation, *hosts: FakeHost) -> Outcome:
    """Run to the end with these hosts registered."""
    work = asyncio.create_task(evaluation.run())
    url = await evaluator_url(evaluation)
    for host in hosts:
        host.evaluator = url
        await host.register(HostState.STARTING)
        await host.register()
    async with asyncio.timeout(120):
        return await work


def bundle(paths: Any, attempt: int = 1) -> Path:
    return paths.attempt(attempt)


def json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]


async def test_five_rows_twice_with_one_wrong_give_reward_08_and_gyms_accuracy_80(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.model.wrong = frozenset({"3"})
        outcome = await finish(w.evaluation(w.plan(ROWS, labels={"benchmark": "mcqa"})), *w.hosts)

    assert (outcome.state, outcome.reason, outcome.coverage) == ("Complete", "AllRolloutsRecorded", 1.0)
    by_name = {aggregate.name: aggregate for aggregate in outcome.aggregates}
    reward = by_name["gym_reward.reward"]
    assert outcome.aggregates[0] is reward
    assert (reward.value, reward.count, reward.kind, reward.unit) == (pytest.approx(0.8), 10, "range", "reward")
    accuracy = by_name["runner.gym.pass@1/accuracy"]
    assert (accuracy.value, accuracy.kind, accuracy.unit) == (pytest.approx(80.0), "scalar", "gym")
    assert "runner.gym.mean/reward" not in by_name
    assert (outcome.progress.done, outcome.progress.failed, outcome.progress.total) == (10, 0, 10)
    assert outcome.progress.mean_reward == pytest.approx(0.8)
    latency = outcome.usage["policy"].latency_seconds
    assert latency is not None
    assert outcome.usage["policy"].model_dump() == {
        "calls": 10,
        "failed_calls": 0,
        "aborted_calls": 0,
        "input_tokens": 1000,
        "output_tokens": 200,
        "total_tokens": 1200,
        "unmetered_calls": 0,
        "seconds": outcome.usage["policy"].seconds,
        "latency_seconds": latency.model_dump(),
    }
    assert outcome.usage["policy"].seconds > 0 and 0 < latency.p50 <= latency.p99 <= latency.max
    assert (outcome.versions["nemo-gym"], outcome.host_kernel) == ("0.5.0", "gVisor")
    assert decode_outcome(w.paths.termination_log.read_bytes()) == outcome
    assert w.hosts[0].shut_down
    assert outcome.warnings == []

    directory = bundle(w.paths)
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["task_count"], summary["trial_count"], summary["error_count"]) == (5, 10, 0)
    assert json.loads((directory / "metadata.json").read_text())["labels"] == {"benchmark": "mcqa"}
    names = {path.name for path in directory.iterdir()}
    assert {"run.json", "scores.jsonl", "trials.jsonl", "tasks.jsonl", "report.html", "gym_run"} <= names
    rollouts = json_lines(directory / "gym_run" / "rollouts.jsonl")
    assert [(r["_ng_task_index"], r["_ng_rollout_index"]) for r in rollouts] == [
        (t, n) for t in range(5) for n in (0, 1)
    ]
    assert all(r["agent_ref"] == {"name": "mcqa_simple_agent"} and "_nhx_model_calls" not in r for r in rollouts)
    assert len(list((directory / "gym_run" / "model_calls").iterdir())) == 10
    assert (directory / "gym_run/gym_env.log").read_text() == w.hosts[0].log


async def test_rollouts_run_at_the_asked_concurrency_over_all_hosts(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=2) as w:
        for host in w.hosts:
            host.delay_s = 0.05
        outcome = await finish(w.evaluation(w.plan(ROWS, hosts=2)), *w.hosts)

    assert outcome.state == "Complete"
    assert all(host.rollouts and host.most_in_flight <= 4 for host in w.hosts)
    assert sorted(w.hosts[0].rollouts + w.hosts[1].rollouts) == ALL


async def test_a_failed_rollout_costs_only_itself_and_is_no_zero(tmp_path: Path) -> None:
    def verify(example: dict[str, Any], text: str) -> float:
        if example["expected_answer"] == "2":
            raise KeyError("no such table")
        return 1.0

    async with world(tmp_path) as w:
        w.hosts[0].verify = verify
        outcome = await finish(w.evaluation(w.plan(ROWS, min_coverage=0.8)), *w.hosts)

    assert (outcome.state, outcome.reason, outcome.coverage) == ("Complete", "MinCoverageReached", 0.8)
    assert outcome.failure_class == "environment"
    assert "2 environment" in outcome.degraded[0] and "no such table" in outcome.degraded[0]
    assert (outcome.aggregates[0].value, outcome.aggregates[0].count) == (1.0, 8)
    failures = json_lines(bundle(w.paths) / "gym_run" / "rollouts_failures.jsonl")
    assert [(f["_ng_task_index"], f["_ng_rollout_index"]) for f in failures] == [(2, 0), (2, 1)]
    trials = json_lines(bundle(w.paths) / "trials.jsonl")
    failed = [trial for trial in trials if trial["status"] == "failed"]
    assert len(trials) == 10 and len(failed) == 2
    assert all(trial["error"]["type"] == "environment" for trial in failed)


def failing(*rows: str, times: int = 1) -> Any:
    """A model that is out of order the first `times` times that one of these rows' rollouts asks it."""
    asked: Counter[str] = Counter()

    async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        number = prompt_of(body).split()[-1]
        asked[number] += 1
        if number in rows and asked[number] <= times:
            return web.json_response({"error": {"message": "out of order"}}, status=503)
        return web.json_response(chat(number))

    return answer


def failed_tries(w: World) -> Counter[tuple[int, int]]:
    """How often the journal says that a rollout failed, by task and repeat."""
    records = [line["record"] for line in json_lines(w.paths.journal)]
    return Counter((each["task"], each["rollout"]) for each in records if each["kind"] == "failure")


async def test_a_failed_rollout_alone_is_run_again_once_all_others_have_ended(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.model.answer = failing("2", times=2)
        outcome = await finish(w.evaluation(w.plan(ROWS, retry_failed=1)), *w.hosts)
    assert (outcome.state, outcome.reason, outcome.coverage) == ("Complete", "AllRolloutsRecorded", 1.0)
    assert (outcome.progress.done, outcome.progress.failed) == (10, 0)
    assert outcome.progress.mean_reward == outcome.aggregates[0].value == 1.0
    assert sorted(w.hosts[0].rollouts[:10]) == ALL and sorted(w.hosts[0].rollouts[10:]) == [(2, 0), (2, 1)]
    assert failed_tries(w) == {(2, 0): 1, (2, 1): 1}
    used = {(each["_ng_task_index"], each["_ng_rollout_index"]): each["models"]["policy"] for each in usage_lines(w)}
    assert all((used[key].get("failed_calls", 0), used[key]["calls"]) == (int(key[0] == 2), 1) for key in ALL)
    aggregates = json.loads((bundle(w.paths) / "gym_run" / "rollouts_aggregate_metrics.json").read_text())
    assert aggregates[0]["agent_metrics"]["rows"] == 10


def usage_lines(w: World) -> list[dict[str, Any]]:
    return json_lines(bundle(w.paths) / "model_usage.jsonl")


async def test_a_rollout_that_goes_on_failing_is_run_as_often_as_was_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.model.answer = failing("2", times=100)
        outcome = await finish(w.evaluation(w.plan(ROWS, retry_failed=2, min_coverage=0.8)), *w.hosts)
    assert (outcome.coverage, outcome.failure_class) == (0.8, "transient")
    assert (outcome.progress.done, outcome.progress.failed) == (8, 2)
    assert failed_tries(w) == {(2, 0): 3, (2, 1): 3}
    assert len(w.hosts[0].rollouts) == 8 + 2 * 3


async def test_an_evaluator_that_starts_again_does_not_begin_to_count_anew(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.model.answer = failing("2", times=100)
        for attempt, retries, tries in ((1, 0, 1), (2, 0, 1), (3, 1, 2), (4, 1, 2)):
            plan = w.plan(ROWS, attempt=attempt, retry_failed=retries, min_coverage=0.8)
            outcome = await finish(w.evaluation(plan), *w.hosts)
            assert (outcome.progress.done, outcome.progress.failed) == (8, 2)
            assert failed_tries(w) == {(2, 0): tries, (2, 1): tries}, attempt
        w.model.answer = None
        outcome = await finish(w.evaluation(w.plan(ROWS, attempt=5, retry_failed=2)), *w.hosts)
    assert (outcome.state, outcome.progress.done, outcome.progress.failed) == ("Complete", 10, 0)
    assert len(w.hosts[0].rollouts) == 8 + 2 * 3


async def test_what_gym_calls_terminal_is_not_run_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        failed = {"_ng_failure_class": "legitimate", "error_message": "no such tool"}
        w.hosts[0].marks = {"1": failed, "3": failed | {"_ng_failure_terminal": True}}
        outcome = await finish(w.evaluation(w.plan(ROWS, retry_failed=1, min_coverage=0.6)), *w.hosts)
    assert (outcome.coverage, outcome.failure_class) == (0.6, "legitimate")
    assert "no such tool" in outcome.degraded[0]
    assert failed_tries(w) == {(1, 0): 2, (1, 1): 2, (3, 0): 1, (3, 1): 1}


async def test_once_the_tokens_are_used_nothing_is_run_again(tmp_path: Path) -> None:
    bound = Bound(value=2 * 120, setting="spec.limits.tokens")
    async with world(tmp_path) as w:
        plan = w.plan(ROWS, retry_failed=5, max_tokens=bound, target=target(concurrency=1))
        outcome = await finish(w.evaluation(plan), *w.hosts)
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "TokenLimitReached", "budget")
    assert len(w.hosts[0].rollouts) == len(set(w.hosts[0].rollouts))


def rule(action: str, *classes: str) -> dict[str, Any]:
    return {"place": f"spec.failurePolicy.rules[{len(classes)}]", "action": action, "classes": classes}


async def test_a_class_that_a_rule_makes_final_ends_the_job_at_its_first_failure_and_scores_what_there_is(
    tmp_path: Path,
) -> None:
    one_by_one = target(concurrency=1)
    async with world(tmp_path) as w:
        w.model.answer = failing("2", times=100)
        rules = [rule("Count", "model"), rule("FailJob", "context", "transient")]
        plan = w.plan(ROWS, rollout_rules=rules, retry_failed=3, min_coverage=0.1, target=one_by_one)
        outcome = await finish(w.evaluation(plan), *w.hosts)
        assert w.hosts[0].rollouts == ALL[:5]
        assert (outcome.state, outcome.reason) == ("Failed", "FailurePolicy")
        words = "spec.failurePolicy.rules[2] ends the job at the first failure of class transient: task "
        assert outcome.message.startswith(words) and "out of order" in outcome.message
        assert (outcome.aggregates[0].value, outcome.aggregates[0].count, outcome.coverage) == (1.0, 4, 0.4)
        assert any(aggregate.name == "runner.gym.pass@1/accuracy" for aggregate in outcome.aggregates)
        failures = json_lines(bundle(w.paths) / "gym_run" / "rollouts_failures.jsonl")
        assert [failure["_ng_failure_class"] for failure in failures] == ["transient"] + ["killed"] * 5
        # An evaluator that was lost before it could say so.
        again = await finish(w.evaluation(plan.model_copy(update={"attempt": 2})), *w.hosts)
    assert (again.state, again.reason, again.message) == ("Failed", "FailurePolicy", outcome.message)
    assert len(w.hosts[0].rollouts) == 5


async def test_an_evaluator_that_was_lost_with_nothing_left_to_collect_still_ends_by_the_rule(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].verify = lambda example, text: None if example["expected_answer"] == "4" else 1.0
        first = await finish(w.evaluation(w.plan(ROWS, min_coverage=0.8)), *w.hosts)
        plan = w.plan(ROWS, attempt=2, rollout_rules=[rule("FailJob", "environment")], min_coverage=0.8)
        again = await finish(w.evaluation(plan), *w.hosts)
    assert (first.state, again.state, again.reason) == ("Complete", "Failed", "FailurePolicy")
    assert len(w.hosts[0].rollouts) == 10


async def test_while_failed_rollouts_are_run_again_the_job_says_so(tmp_path: Path) -> None:
    words, said = "10 failed rollouts are run again (spec.retryFailed)", []

    async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        said.append(words in evaluation.progress.snapshot().message)
        return web.json_response({"error": {"message": "out of order"}}, status=503)

    async with world(tmp_path) as w:
        w.model.answer = answer
        evaluation = w.evaluation(w.plan(ROWS, retry_failed=1))
        await finish(evaluation, *w.hosts)
    assert said == [False] * 10 + [True] * 10
    assert "run again" not in evaluation.progress.snapshot().message


async def test_rollouts_that_are_under_way_are_given_up_when_a_rule_ends_the_job(tmp_path: Path) -> None:
    async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if prompt_of(body) == "question 0":
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        await asyncio.sleep(60)
        raise AssertionError("nobody waits for so long")

    async with world(tmp_path) as w:
        w.model.answer = answer
        async with asyncio.timeout(40):
            outcome = await finish(w.evaluation(w.plan(ROWS, rollout_rules=[rule("FailJob", "model")])), *w.hosts)
    assert (outcome.state, outcome.reason, outcome.coverage) == ("Failed", "FailurePolicy", 0.0)
    assert "no such model" in outcome.message


async def test_a_class_that_a_rule_takes_out_is_not_run_again_and_the_first_rule_that_fits_counts(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        w.model.answer = failing("2", times=100)
        w.hosts[0].verify = lambda example, text: None if example["expected_answer"] == "3" else 1.0
        rules = [rule("FailRollout", "transient"), rule("FailJob", "transient", "model")]
        outcome = await finish(
            w.evaluation(w.plan(ROWS, rollout_rules=rules, retry_failed=1, min_coverage=0.6)), *w.hosts
        )
    assert (outcome.state, outcome.coverage) == ("Complete", 0.6)
    assert failed_tries(w) == {(2, 0): 1, (2, 1): 1, (3, 0): 2, (3, 1): 2}


async def test_too_little_coverage_fails_the_job_and_still_shows_what_was_scored(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].verify = lambda example, text: None if example["expected_answer"] == "1" else 1.0
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)

    assert (outcome.state, outcome.reason) == ("Failed", "CoverageTooLow")
    assert "spec.minCoverage" in outcome.message and "8 of 10" in outcome.message
    assert (outcome.aggregates[0].value, outcome.coverage) == (1.0, 0.8)


@pytest.mark.parametrize("unreal", [float("nan"), float("inf"), None, "half", [], "NaN"])
async def test_a_reward_that_is_no_number_is_a_failed_trial_and_leaves_the_bundle_strict_json(
    tmp_path: Path, unreal: Any
) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].verify = lambda example, text: unreal if example["expected_answer"] == "0" else "0.5"
        outcome = await finish(w.evaluation(w.plan(ROWS, min_coverage=0.5)), *w.hosts)

    assert (outcome.coverage, outcome.failure_class) == (0.8, "environment")
    assert (outcome.aggregates[0].value, outcome.aggregates[0].count) == (0.5, 8)
    for file in bundle(w.paths).rglob("*.jsonl"):
        json_lines(file)
    for file in bundle(w.paths).rglob("*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)


async def test_true_is_a_reward_of_one_as_the_sdk_reads_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].verify = lambda example, text: True
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
    assert (outcome.state, outcome.aggregates[0].value) == ("Complete", 1.0)


@pytest.mark.parametrize(("fail_fast", "state"), [(False, "Complete"), (True, "Failed")])
async def test_a_trial_that_cannot_be_scored_ends_the_job_only_with_fail_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_fast: bool, state: str
) -> None:
    async def broken(self: GymRewardMetric, input: MetricInput) -> MetricResult:
        raise RuntimeError("the metric is broken")

    monkeypatch.setattr(GymRewardMetric, "compute_scores", broken)
    async with world(tmp_path) as w:
        outcome = await finish(w.evaluation(w.plan(ROWS, fail_fast=fail_fast, min_coverage=0.0)), *w.hosts)

    assert outcome.state == state
    assert ("the metric is broken" in outcome.message) is fail_fast


async def test_repeated_rows_are_one_task_and_the_job_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        outcome = await finish(w.evaluation(w.plan([row(1)] * 5)), *w.hosts)
    assert (outcome.progress.done, outcome.progress.total) == (2, 2)
    (notice,) = outcome.progress.notices
    assert notice.type == "RowsCollapsed" and "5 rows, 1 distinct" in notice.message


EXAMPLE = "resources_servers/mcqa/data/example.jsonl"


async def test_fields_that_every_example_row_of_the_server_has_and_no_row_of_the_job_are_named(tmp_path: Path) -> None:
    only_one = {**row(0), "options": [], "grading_mode": "strict", "uuid": "0", "agent_ref": {"name": "a"}, "note": ""}
    both = {key: value for key, value in only_one.items() if key != "note"}
    async with world(tmp_path) as w:
        write_rows(w.paths.bundled_datasets / EXAMPLE, [only_one, both])
        rows = [row(1), {**row(2), "grading_mode": "strict"}]
        outcome = await finish(w.evaluation(w.plan(rows)), *w.hosts)
    assert (outcome.state, outcome.degraded) == ("Complete", [])
    (notice,) = outcome.progress.notices
    assert (notice.type, notice.reason) == ("RowFieldsMissing", "RowsUnlikeExample")
    assert f"no row has `options`, which every row of {EXAMPLE} has" in notice.message


async def test_nothing_is_said_of_rows_like_the_example_nor_of_an_environments_own_server(tmp_path: Path) -> None:
    whole = {**row(0), "options": []}
    async with world(tmp_path) as w:
        write_rows(w.paths.bundled_datasets / EXAMPLE, [whole])

        async def said(rows: list[dict[str, Any]], **more: Any) -> int:
            return len((await Preparation(w.plan(rows, **more), w.paths).dataset()).notices)

        assert await said([whole, row(1)]) == 0
        assert await said([row(1)]) == 1
        assert await said([row(1)], environment=True) == 0


@pytest.mark.parametrize(
    ("answered", "is_news"),
    [
        ("smollm2-135m-instruct", True),
        ("org/Name-3.2", False),
        ("name-3.2", False),
        ("/models/Name-3.2-2024-08-06.gguf", False),
        ("Name-3", False),
        ("org/Other-3.2", True),
    ],
)
async def test_a_model_that_answers_under_another_name_is_said_and_a_version_of_it_is_none(
    tmp_path: Path, answered: str, is_news: bool
) -> None:
    async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(chat(prompt_of(body).split()[-1]) | {"model": answered})

    async with world(tmp_path) as w:
        w.model.answer = answer
        outcome = await finish(w.evaluation(w.plan([row(1)])), *w.hosts)
    assert (outcome.state, outcome.degraded) == ("Complete", [])
    said = [(notice.type, notice.message) for notice in outcome.progress.notices]
    words = f"model policy: asked for org/Name-3.2, the endpoint answered as {answered}"
    assert said == ([("ModelAnsweredAs", words)] if is_news else [])


@pytest.mark.parametrize(
    ("agent", "environment", "is_ignored"),
    [("my_agnt", True, True), ("my_agent", True, False), ("simple_agent", True, False), ("my_agnt", False, False)],
)
async def test_a_misspelt_agent_of_a_custom_environment_is_warned_of(
    tmp_path: Path, agent: str, environment: bool, is_ignored: bool
) -> None:
    async with world(tmp_path) as w:
        (w.paths.environment / "responses_api_agents/my_agent").mkdir(parents=True)
        plan = w.plan([row(0)], environment=environment, target=target(agent=agent, agent_ref_name="mine"))
        said = Preparation(plan, w.paths).ignored_agent()
    assert bool(said) == is_ignored
    assert all(f"spec.target.gym.agent {agent!r}" in words and "'mine'" in words for words in said)


@pytest.mark.parametrize(
    ("agent", "instance", "of"),
    [
        ("simple_agent", "mine", "my_agent"),
        ("my_agent", "mine", None),
        ("my_agent", "mcqa_simple_agent", "simple_agent"),
        ("simple_agent", "mcqa_simple_agent", None),
        ("simple_agent", "of_an_included_file", None),
    ],
)
async def test_an_agent_that_the_instance_beside_it_is_not_of_is_warned_of_where_an_environment_has_it(
    tmp_path: Path, agent: str, instance: str, of: str | None
) -> None:
    async with world(tmp_path) as w:
        folder = w.paths.environment / "responses_api_agents/my_agent"
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text("mine: {responses_api_agents: {my_agent: {entrypoint: app.py}}}\n")
        manifest = "{format: native-v1, metadata: {name: mine}, config_paths: [responses_api_agents/my_agent/a.yaml]}"
        (w.paths.environment / "nemo-environment.yaml").write_text(manifest)
        plan = w.plan([row(0)], environment=True, target=target(agent=agent, agent_ref_name=instance))
        said = Preparation(plan, w.paths).ignored_agent()
    named = f"spec.target.gym.agentRefName {instance!r} is an instance of {of!r}"
    assert said == ([f"spec.target.gym.agent {agent!r} was ignored: {named}"] if of else [])


async def test_white_space_that_a_host_left_out_of_env_secrets_is_said_by_the_names_of_the_job(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        evaluation = w.evaluation(w.plan([row(0)], target=target(env_secret_names=["TOOL", "CLEAN"])))
        work = asyncio.create_task(evaluation.run())
        host = w.hosts[0]
        host.evaluator = await evaluator_url(evaluation)
        await host.register(trimmed=["TOOL", "\x1b[2J whatever a host says"])
        outcome = await asyncio.wait_for(work, 60)
    assert outcome.warnings == ["white space around the value of spec.target.gym.envSecrets.TOOL was left out"]


async def test_the_limit_takes_the_first_distinct_rows(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        outcome = await finish(w.evaluation(w.plan([row(0), row(0), row(1), row(2)], limit=2)), *w.hosts)
    assert outcome.progress.total == 4
    assert {key[0] for key in w.hosts[0].rollouts} == {0, 1}


async def test_a_model_that_refuses_every_call_is_named_with_its_words_and_nothing_is_scored(tmp_path: Path) -> None:
    async def refuse(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "parameter max_tokens not supported"}}, status=400)

    async with world(tmp_path) as w:
        w.model.answer = refuse
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)

    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "ModelUnavailable", "model")
    assert "parameter max_tokens not supported" in outcome.message
    assert outcome.usage["policy"].failed_calls == 10
    assert (outcome.aggregates[0].value, outcome.aggregates[0].count) == (None, 0)


async def test_a_refused_row_reaches_the_model_unchanged_and_fails_with_the_servers_words(tmp_path: Path) -> None:
    async def refuse_some(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if prompt_of(body) in ("question 1", "question 3"):
            return web.json_response({"object": "error", "message": "null is not of type 'string'"}, status=400)
        return web.json_response(chat(prompt_of(body).split()[-1]))

    tool = {"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": None}
    padded = tool | {"server_label": None, "vector_store_ids": None, "filters": None}
    rows = [deepcopy(each) for each in ROWS]
    for each in rows:
        each["responses_create_params"]["tools"] = [padded]
    async with world(tmp_path) as w:
        w.model.answer = refuse_some
        outcome = await finish(w.evaluation(w.plan(rows, min_coverage=0.6)), *w.hosts)

    added = {"_ng_task_index", "_ng_rollout_index", "agent_ref"}
    came = [{key: value for key, value in each.items() if key not in added} for each in w.hosts[0].examples]
    assert all(each in came for each in rows) and all(each in rows for each in came)
    trials = json_lines(bundle(w.paths) / "trials.jsonl")
    failed = [trial for trial in trials if trial["status"] == "failed"]
    ids = [task["id"] for task in json_lines(bundle(w.paths) / "tasks.jsonl")]
    assert {trial["task_id"] for trial in failed} == {ids[1], ids[3]} and len(failed) == 4
    assert all("null is not of type 'string'" in trial["error"]["message"] for trial in failed)
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", 0.6, "model")
    assert "4 model" in outcome.degraded[0] and "null is not of type 'string'" in outcome.degraded[0]
    assert outcome.aggregates[0].value == 1.0


async def test_missing_aggregates_degrade_the_job_and_do_not_fail_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].aggregate_fails = True
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
    assert outcome.state == "Complete"
    assert len(outcome.degraded) == 1 and outcome.degraded[0].startswith("runner.gym.* is missing")
    assert not any(aggregate.name.startswith("runner.gym.") for aggregate in outcome.aggregates)


async def test_a_broken_connection_costs_a_try_and_not_the_rollout(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].die_on = {(1, 0), (4, 1)}
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
    assert (outcome.state, outcome.progress.done) == ("Complete", 10)
    assert len(w.hosts[0].rollouts) == 12


async def test_a_host_that_comes_again_takes_over_what_its_predecessor_left(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=2) as w:
        first, second = w.hosts
        second.ordinal, second.boot_id = 0, "boot-2"
        first.delay_s = 30
        evaluation = w.evaluation(w.plan(ROWS))
        work = asyncio.create_task(finish(evaluation, first))
        async with asyncio.timeout(60):
            while not first.rollouts:
                await asyncio.sleep(0.01)
        first.healthy = False
        first.die_on = set(ALL)
        second.evaluator = await evaluator_url(evaluation)
        await second.register(HostState.STARTING)
        await second.register()
        # What was in flight on the first host ends when its process does.
        for transport in first.transports:
            transport.abort()
        outcome = await work
    assert (outcome.state, outcome.progress.done) == ("Complete", 10)


# Of several hosts


def recorded(w: World) -> list[tuple[int, int]]:
    """The rollouts of which the journal has a result, each as often as it has."""
    records = [line["record"] for line in json_lines(w.paths.journal)]
    return sorted((each["task"], each["rollout"]) for each in records if each.get("kind") == "result")


async def test_a_host_lost_midway_costs_no_rollout_and_its_unfinished_ones_go_to_the_others(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=3) as w:
        lost, *others = w.hosts
        lost.delay_s = 600
        evaluation = w.evaluation(w.plan(ROWS, hosts=3, target=target(concurrency=6)))
        work = asyncio.create_task(finish(evaluation, *w.hosts))
        async with asyncio.timeout(60):
            while len(lost.rollouts) < 2 or evaluation.progress.done < 2:
                await asyncio.sleep(0.01)
        lost.healthy = False
        for transport in lost.transports:
            transport.abort()
        outcome = await work
    assert (outcome.state, outcome.progress.done, outcome.aggregates[0].count) == ("Complete", 10, 10)
    assert recorded(w) == ALL
    assert sorted(others[0].rollouts + others[1].rollouts) == ALL
    assert len(lost.rollouts) == 2 and all(host.most_in_flight <= 2 for host in w.hosts)


async def test_a_result_of_a_host_that_was_given_up_is_not_recorded_a_second_time(tmp_path: Path) -> None:
    """It goes on with what it was sent, and comes back when another host has done it."""
    async with world(tmp_path, hosts=2) as w:
        late, other = w.hosts
        late.delay_s, other.delay_s = 1.0, 0.3
        plan = w.plan(ROWS, hosts=2, target=target(concurrency=2))
        evaluation = w.evaluation(plan)
        work = asyncio.create_task(finish(evaluation, *w.hosts))
        async with asyncio.timeout(60):
            while not late.rollouts:
                await asyncio.sleep(0.01)
        late.transports[0].abort()
        outcome = await work
    assert (outcome.state, outcome.progress.done, outcome.progress.total) == ("Complete", 10, 10)
    assert len(w.model.requests) == len(late.rollouts + other.rollouts) == 11
    assert recorded(w) == ALL


async def test_a_host_that_comes_late_takes_its_part_of_what_is_left(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=2) as w:
        early, late = w.hosts
        early.delay_s = late.delay_s = 0.2
        evaluation = w.evaluation(w.plan(ROWS, hosts=2))
        work = asyncio.create_task(finish(evaluation, early))
        async with asyncio.timeout(60):
            while evaluation.progress.done < 2:
                await asyncio.sleep(0.01)
        assert evaluation.progress.stage is Stage.COLLECTING
        assert evaluation.progress.message == "1 of 2 gym hosts take rollouts; waiting for gym host 1 to register"
        late.evaluator = early.evaluator
        await late.register()
        outcome = await work
    assert outcome.state == "Complete" and late.rollouts
    assert sorted(early.rollouts + late.rollouts) == ALL


async def test_a_slow_host_takes_fewer_rollouts_than_a_quick_one(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=2) as w:
        slow, quick = w.hosts
        slow.delay_s = 1.5
        outcome = await finish(w.evaluation(w.plan(ROWS, hosts=2)), *w.hosts)
    assert outcome.state == "Complete"
    assert len(slow.rollouts) < len(quick.rollouts)


async def test_a_host_that_cannot_start_is_a_warning_of_a_job_that_others_completed(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=2) as w:
        works, broken = w.hosts
        works.delay_s = 0.3
        evaluation = w.evaluation(w.plan(ROWS, hosts=2))
        work = asyncio.create_task(finish(evaluation, works))
        broken.evaluator = await evaluator_url(evaluation)
        await broken.register(HostState.FAILED, message="mcqa ended", output_tail=["ImportError: no module x"])
        outcome = await work
    assert (outcome.state, outcome.progress.done) == ("Complete", 10)
    (warning,) = outcome.warnings
    assert warning.startswith("gym host 1 could not start Gym: mcqa ended")


async def test_every_host_is_told_to_end_and_its_log_is_in_the_bundle_by_its_ordinal(tmp_path: Path) -> None:
    async with world(tmp_path, hosts=3) as w:
        first, second, starting = w.hosts
        for host in w.hosts:
            host.log, host.killed = f"log of {host.ordinal}\n", 1
        evaluation = w.evaluation(w.plan(ROWS, hosts=3))
        work = asyncio.create_task(finish(evaluation, first, second))
        starting.evaluator = await evaluator_url(evaluation)
        await starting.register(HostState.STARTING)
        outcome = await work
    assert outcome.state == "Complete" and all(host.shut_down for host in w.hosts)
    logs = {file.name: file.read_text() for file in (bundle(w.paths) / "gym_run").glob("gym_env*.log")}
    assert logs["gym_env.log"] == "log of 0\n" and logs["gym_env.host-1.log"] == "log of 1\n"
    assert any(warning.split()[0] in ("2", "3") and "processes of Gym" in warning for warning in outcome.warnings)


async def test_aggregates_come_from_another_host_if_the_first_is_gone_by_then(tmp_path: Path) -> None:
    class GoneByThen(FakeHost):
        async def _aggregate(self, request: web.Request) -> web.Response:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

    async with world(tmp_path, hosts=2) as w:
        first = GoneByThen()
        async with serving(first.app()) as first.url:
            outcome = await finish(w.evaluation(w.plan(ROWS, hosts=2)), first, w.hosts[1])
    assert first.rollouts
    assert outcome.state == "Complete" and not outcome.degraded
    assert "runner.gym.pass@1/accuracy" in {aggregate.name for aggregate in outcome.aggregates}


async def lost_after_two(tmp_path: Path, **plan: Any) -> Outcome:
    """The outcome of a job whose only host ends for good after the first rollouts."""
    async with world(tmp_path) as w:
        host = w.hosts[0]
        host.delay_s = 0.2
        evaluation = w.evaluation(w.plan(ROWS, **plan))
        work = asyncio.create_task(finish(evaluation, host))
        async with asyncio.timeout(60):
            while evaluation.progress.done < 2:
                await asyncio.sleep(0.01)
        await host.register(HostState.FAILED, message="mcqa ended with -9")
        return await work


async def test_a_host_lost_for_good_leaves_a_job_that_reached_its_coverage_complete(tmp_path: Path) -> None:
    outcome = await lost_after_two(tmp_path, min_coverage=0.1)
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Complete", "MinCoverageReached", "killed")
    assert "mcqa ended with -9" in outcome.degraded[0] and outcome.degraded[1].startswith("runner.gym.* is missing")
    assert 0.1 < outcome.coverage < 1


async def test_a_host_lost_for_good_fails_a_job_without_its_coverage(tmp_path: Path) -> None:
    outcome = await lost_after_two(tmp_path)
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "HostLost", "killed")
    assert (outcome.aggregates[0].value, outcome.aggregates[0].count) == (1.0, outcome.progress.done)


async def test_a_host_that_cannot_start_fails_the_job_with_the_end_of_its_output(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        evaluation = w.evaluation(w.plan(ROWS))
        work = asyncio.create_task(evaluation.run())
        host = w.hosts[0]
        host.evaluator = await evaluator_url(evaluation)
        await host.register(HostState.STARTING)
        host.log = "noise\n" * 3000 + "ImportError: no module x\n"
        await host.send_log()
        await host.register(HostState.FAILED, message="mcqa ended", output_tail=["noise", "ImportError: no module x"])
        outcome = await asyncio.wait_for(work, 60)
    assert (outcome.state, outcome.reason) == ("Failed", "HostStartupFailed")
    assert "mcqa ended" in outcome.message
    assert "gym_run/gym_env.log ends:\nnoise\nImportError: no module x" in outcome.message
    assert (bundle(w.paths) / "gym_run/gym_env.log").read_text() == host.log


async def test_the_startup_timeout_counts_from_the_launchers_start(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        evaluation = w.evaluation(w.plan(ROWS, target=target(startup_timeout_s=1)))
        work = asyncio.create_task(evaluation.run())
        host = w.hosts[0]
        host.evaluator = await evaluator_url(evaluation)
        await asyncio.sleep(1.5)
        assert not work.done()
        await host.register(HostState.STARTING)
        outcome = await asyncio.wait_for(work, 60)
    assert (outcome.state, outcome.reason) == ("Failed", "StartupTimeout")
    assert "startupTimeoutSeconds" in outcome.message


async def test_the_collection_timeout_ends_the_job_and_scores_what_there_is(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].delay_s = 0.4
        plan = w.plan(ROWS, target=target(collection_timeout_s=2.0, concurrency=1))
        outcome = await finish(w.evaluation(plan), *w.hosts)
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "CollectionTimeout", "timeout")
    assert "collectionTimeoutSeconds" in outcome.message
    assert "gym_run/gym_env.log ends:\nstarting\nUvicorn running" in outcome.message
    assert 0 < outcome.progress.done < 10
    assert (outcome.aggregates[0].value, outcome.aggregates[0].count) == (1.0, outcome.progress.done)


async def test_a_collection_in_which_nothing_happens_ends_by_its_limit_and_scores_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "LAST_CALL_S", 0.0)
    async with world(tmp_path) as w:
        host = w.hosts[0]

        def verify(example: dict[str, Any], text: str) -> float:
            host.delay_s = 600.0
            return 1.0

        host.verify = verify
        models = [route(w.model.url, timeout_seconds=2.0)]
        plan = w.plan(ROWS, target=target(concurrency=1)).model_copy(update={"idle_s": 1.0, "models": models})
        outcome = await finish(w.evaluation(plan), host)
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "CollectionStalled", "timeout")
    # A model has its own time, however short the limit is.
    assert "for 2 s no rollout ended" in outcome.message and "spec.idleTimeoutSeconds" in outcome.message
    assert "gym_run/gym_env.log ends:" in outcome.message
    assert (outcome.progress.done, outcome.aggregates[0].count, outcome.aggregates[0].value) == (1, 1, 1.0)


async def test_callers_that_leave_before_their_answer_are_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "LAST_CALL_S", 0.0)

    async def never(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(600)
        return web.Response()

    class Impatient(FakeHost):
        async def _body(self, example: dict[str, Any]) -> bytes:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await super()._body(example)

    async with world(tmp_path, hosts=0) as w:
        w.model.answer = never
        host = Impatient()
        async with serving(host.app()) as host.url:
            models = [route(w.model.url, timeout_seconds=2.0)]
            plan = w.plan(ROWS, target=target(concurrency=1)).model_copy(update={"idle_s": 1.0, "models": models})
            outcome = await finish(w.evaluation(plan), host)
    assert (outcome.state, outcome.reason) == ("Failed", "CollectionStalled")
    usage = outcome.usage["policy"]
    assert usage.calls == usage.failed_calls == 0 and usage.aborted_calls > 0  # how many is the machine's


@pytest.mark.parametrize("sign", ["rollout", "call"])
async def test_a_slow_collection_goes_on_while_rollouts_or_model_calls_end(tmp_path: Path, sign: str) -> None:
    usage = ModelUsage()
    gateway: Any = SimpleNamespace(usage=lambda: {"policy": usage})
    nothing: Any = None
    watched = Collection(make_plan(tmp_path / "x"), nothing, nothing, gateway, nothing)
    with pytest.raises(TimeoutError):
        async with watched._watched(2.0) as timer:
            for _ in range(8):
                await asyncio.sleep(0.5)
                watched._signs += sign == "rollout"
                usage.calls += sign == "call"
            went_on = True
            await asyncio.sleep(60)
    assert went_on and timer.expired()


async def test_a_full_volume_ends_the_job_by_its_name_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Journal.open

    def on_a_full_volume(*arguments: Any) -> Journal:
        journal = opened(*arguments)
        journal._file = FileIO("/dev/full", "ab")
        return journal

    monkeypatch.setattr(Journal, "open", on_a_full_volume)
    async with world(tmp_path) as w:
        outcome = await finish(w.evaluation(w.plan(ROWS, results_location="persistentVolumeClaim/mine")), *w.hosts)
    assert (outcome.state, outcome.reason) == ("Failed", "ResultsVolumeFull")
    assert outcome.message.startswith("persistentVolumeClaim/mine, which holds the results, is full (")
    assert "GiB in all" in outcome.message and "No space left on device" in outcome.message
    assert len(w.hosts[0].rollouts) <= 4


async def test_a_bundle_is_said_to_be_there_when_all_of_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise OSError("the volume went away")

    monkeypatch.setattr(_Parts, "finish", fails)
    async with world(tmp_path) as w:
        bundle(w.paths).mkdir(parents=True)
        (bundle(w.paths) / "run.json").write_text("{}")
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
        assert outcome.state == "Failed" and "the volume went away" in outcome.message
        assert not (bundle(w.paths) / "run.json").exists()


async def test_processes_that_a_host_had_to_kill_are_a_warning_with_its_log(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].killed = 2
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
    assert outcome.state == "Complete"
    (warning,) = outcome.warnings
    assert "2 processes of Gym did not end within 5 s (spec.target.gym.shutdownGraceSeconds)" in warning
    assert "gym_run/gym_env.log ends:\nstarting\nUvicorn running" in warning


async def test_a_host_that_ends_without_a_word_does_not_hold_up_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through_hosts, "LOG_MARGIN_S", 0.2)
    async with world(tmp_path) as w:
        work = asyncio.create_task(finish(w.evaluation(w.plan(ROWS, target=target(shutdown_grace_s=0.2))), *w.hosts))
        w.hosts[0].says_goodbye = False
        outcome = await work
    assert (outcome.state, outcome.warnings) == ("Complete", [])
    assert not (bundle(w.paths) / "gym_run/gym_env.log").exists()


async def test_a_later_attempt_collects_only_what_is_missing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        host = w.hosts[0]
        host.delay_s = 0.5
        plan = w.plan(ROWS, target=target(collection_timeout_s=2.0, concurrency=2))
        first = await finish(w.evaluation(plan), host)
        recorded = first.progress.done
        assert 0 < recorded < 10
        host.rollouts.clear()
        host.delay_s = 0
        earlier = {file: file.read_bytes() for file in bundle(w.paths).rglob("*") if file.is_file()}
        again = plan.model_copy(update={"attempt": 2, "target": target()})
        outcome = await finish(w.evaluation(again), host)
    assert earlier and all(file.read_bytes() == content for file, content in earlier.items())
    assert (outcome.state, outcome.progress.done, outcome.results_path) == ("Complete", 10, "attempt-2")
    # What was being written when the time was up counts from then on.
    assert recorded <= 10 - len(host.rollouts) <= recorded + 2
    aggregates = json.loads((bundle(w.paths, 2) / "gym_run" / "rollouts_aggregate_metrics.json").read_text())
    assert aggregates[0]["agent_metrics"]["rows"] == 10
    assert len(list((bundle(w.paths, 2) / "gym_run" / "model_calls").iterdir())) == 10


async def test_an_environment_that_changed_between_two_attempts_is_warned_of_with_both_digests(tmp_path: Path) -> None:
    async with world(tmp_path) as w:

        async def attempt(number: int, files: dict[str, str]) -> tuple[str, list[str]]:
            digest = stage_folder(write(tmp_path / "source", files), w.paths.environment).digest
            plan = w.plan(ROWS).model_copy(update={"attempt": number, "environment": True})
            outcome = await finish(w.evaluation(plan), *w.hosts)
            assert outcome.environment_digest == digest
            return digest, [words for words in outcome.warnings if "content changed" in words]

        first, warned = await attempt(1, FILES)
        assert not warned
        second, (warned,) = await attempt(2, FILES | {"more.txt": "x"})
    assert first in warned and second in warned and "spec.digest" in warned


async def test_only_the_tasks_asked_for_are_rolled_out(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        whole = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
        ids = [task["id"] for task in json_lines(bundle(w.paths) / "tasks.jsonl")]
    async with world(tmp_path / "subset") as w:
        outcome = await finish(w.evaluation(w.plan(ROWS, task_ids=[ids[3], ids[1]])), *w.hosts)
    assert (whole.progress.total, outcome.progress.total, outcome.state) == (10, 4, "Complete")
    asked = [call["messages"][-1]["content"] for call in w.model.bodies]
    assert sorted(asked) == ["question 1"] * 2 + ["question 3"] * 2


async def test_a_task_id_that_no_row_has_ends_the_job_before_any_call_with_a_reason_of_its_own(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        outcome = await asyncio.wait_for(w.evaluation(w.plan(ROWS, task_ids=["feedbeef"])).run(), 60)
    assert (outcome.state, outcome.reason) == ("Failed", "TaskNotFound")
    assert "feedbeef" in outcome.message and not w.model.requests


async def test_the_tasks_of_a_bundle_can_be_run_again_as_a_taskset(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.model.wrong = frozenset({"3"})
        first = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
        tasks = (bundle(w.paths) / "tasks.jsonl").read_text()
    async with world(tmp_path / "again") as w:
        w.model.wrong = frozenset({"3"})
        plan = w.plan(ROWS, taskset=True)
        Path(plan.dataset_file).write_text(tasks)
        again = await finish(w.evaluation(plan), *w.hosts)
    assert again.aggregates == first.aggregates and again.state == "Complete"


async def test_a_job_with_more_rollouts_than_it_may_have_ends_before_any_call(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        bound = Bound(value=9, setting="the operator's setting limits.maxRollouts")
        outcome = await asyncio.wait_for(w.evaluation(w.plan(ROWS, max_rollouts=bound)).run(), 60)
        assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "RolloutLimitExceeded", "budget")
        for words in ("5 tasks x numRepeats 2 are 10 rollouts", "limits.maxRollouts allows 9", "spec.tasks.limit"):
            assert words in outcome.message
        assert not w.model.requests
        enough = w.plan(ROWS, max_rollouts=bound, limit=4)
        assert (await finish(w.evaluation(enough), *w.hosts)).state == "Complete"


TOKENS_OF_A_CALL = 120


async def test_once_the_tokens_are_used_no_further_call_is_made_and_the_rest_is_named_as_budget(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        bound = Bound(value=4 * TOKENS_OF_A_CALL - 1, setting="spec.limits.tokens")
        plan = w.plan(ROWS, max_tokens=bound, target=target(concurrency=1))
        outcome = await finish(w.evaluation(plan), *w.hosts)
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "TokenLimitReached", "budget")
    assert "480 tokens, and spec.limits.tokens allows 479" in outcome.message
    assert len(w.model.requests) == len(w.hosts[0].rollouts) == 4
    assert (outcome.progress.done, outcome.aggregates[0].count, outcome.aggregates[0].value) == (4, 4, 1.0)
    failures = json_lines(bundle(w.paths) / "gym_run" / "rollouts_failures.jsonl")
    assert {failure["_ng_failure_class"] for failure in failures} == {"budget"} and len(failures) == 6


async def test_a_job_that_has_its_coverage_when_the_tokens_are_used_is_complete(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        bound = Bound(value=4 * TOKENS_OF_A_CALL, setting="spec.limits.tokens")
        plan = w.plan(ROWS, max_tokens=bound, target=target(concurrency=1), min_coverage=0.4)
        outcome = await finish(w.evaluation(plan), *w.hosts)
    assert (outcome.state, outcome.reason, outcome.coverage) == ("Complete", "MinCoverageReached", 0.4)
    assert "6 budget" in outcome.degraded[0] and "spec.limits.tokens" in outcome.degraded[0]


async def test_tokens_that_are_just_enough_are_enough(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        bound = Bound(value=10 * TOKENS_OF_A_CALL, setting="spec.limits.tokens")
        outcome = await finish(w.evaluation(w.plan(ROWS, max_tokens=bound)), *w.hosts)
    assert (outcome.state, outcome.progress.done) == ("Complete", 10)


async def test_a_later_attempt_has_only_the_tokens_that_are_left(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        host = w.hosts[0]
        bound = Bound(value=6 * TOKENS_OF_A_CALL, setting="spec.limits.tokens")
        slow = target(collection_timeout_s=2.0, concurrency=1)
        host.delay_s = 0.6
        first = await finish(w.evaluation(w.plan(ROWS, max_tokens=bound, target=slow)), host)
        assert first.reason == "CollectionTimeout" and 0 < first.progress.done < 5
        interrupted = first.usage["policy"].calls - first.progress.done  # the limit may fall behind a call's answer
        host.delay_s = 0
        plan = w.plan(ROWS, max_tokens=bound, target=target(concurrency=1), attempt=2)
        outcome = await finish(w.evaluation(plan), host)
    assert (outcome.reason, outcome.progress.done) == ("TokenLimitReached", 6 - interrupted)
    assert outcome.usage["policy"].total_tokens == bound.value
    assert calls_of(outcome.usage["policy"]) == len(w.model.requests)


async def test_what_an_evaluator_had_spent_when_it_died_is_not_to_be_spent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between two rollouts, when one call had its answer and one was under way."""
    monkeypatch.setattr(http_server, "USAGE_INTERVAL_S", 0.05)

    class Stuck(FakeHost):
        is_stuck = True

        async def _body(self, example: dict[str, Any]) -> bytes:
            body = await super()._body(example)
            await asyncio.sleep(600 * self.is_stuck)
            return body

    async def first_alone(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(600 * (len(w.model.requests) == 2))
        return web.json_response(chat(prompt_of(body).split()[-1]))

    def noted() -> dict[str, Any]:
        record = json.loads(w.paths.journal.read_bytes().splitlines()[-1])["record"]
        return record.get("usage", {}).get("policy", {})

    async with world(tmp_path, hosts=0) as w:
        w.model.answer = first_alone
        host = Stuck()
        bound = Bound(value=3, setting="spec.limits.calls")
        plan = w.plan(ROWS, max_calls=bound, target=target(concurrency=2), min_coverage=0.1)
        async with serving(host.app()) as host.url:
            work = asyncio.create_task(finish(w.evaluation(plan), host))
            async with asyncio.timeout(60):
                while not (w.paths.journal.exists() and noted().get("calls") and noted().get("aborted_calls")):
                    await asyncio.sleep(0.02)
            left = w.paths.journal.read_bytes()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            w.paths.journal.write_bytes(left)
            host.is_stuck = False
            outcome = await finish(w.evaluation(plan.model_copy(update={"attempt": 2})), host)
    usage = outcome.usage["policy"]
    assert (usage.calls, usage.aborted_calls, usage.unmetered_calls, usage.total_tokens) == (2, 1, 1, 240)
    assert len(w.model.requests) == 3 and outcome.progress.done == 1


async def test_calls_that_state_no_tokens_are_said_to_escape_the_bound(tmp_path: Path) -> None:
    async def silent(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(chat(prompt_of(body).split()[-1], usage=False))

    async with world(tmp_path) as w:
        w.model.answer = silent
        bound = Bound(value=1, setting="spec.limits.tokens")
        outcome = await finish(w.evaluation(w.plan(ROWS, max_tokens=bound)), *w.hosts)
    assert outcome.state == "Complete"
    assert outcome.warnings == ["10 model calls stated no tokens, so spec.limits.tokens (1) does not count them"]


@pytest.mark.parametrize(("concurrency", "parallelism"), [(1, 8), (8, 1)])
async def test_concurrency_governs_collection_and_parallelism_scoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrency: int, parallelism: int
) -> None:
    scoring: list[int] = [0]
    most = 0
    compute = GymRewardMetric.compute_scores

    async def watched(self: GymRewardMetric, input: MetricInput) -> MetricResult:
        nonlocal most
        scoring[0] += 1
        most = max(most, scoring[0])
        await asyncio.sleep(0.01)
        scoring[0] -= 1
        return await compute(self, input)

    monkeypatch.setattr(GymRewardMetric, "compute_scores", watched)
    async with world(tmp_path) as w:
        w.hosts[0].delay_s = 0.2
        plan = w.plan(ROWS, target=target(concurrency=concurrency), parallelism=parallelism)
        outcome = await finish(w.evaluation(plan), *w.hosts)
    assert outcome.state == "Complete"
    assert (w.hosts[0].most_in_flight, most) == (concurrency, parallelism)


async def test_a_run_that_is_scored_in_parts_has_the_bundle_of_one_that_is_scored_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(example: dict[str, Any], text: str) -> float:
        if example["expected_answer"] == "2":
            raise KeyError("no such table")
        return float(example["expected_answer"] != "3")

    # What model calls took is not the same twice, and stands in the bundle.
    monkeypatch.setattr("nhx_gym_operator.evaluator.gateway.calls.time", SimpleNamespace(monotonic=lambda: 0.0))
    bundles = []
    for rollouts_at_once in (500, 3):
        monkeypatch.setattr("nhx_gym_operator.evaluator.trials.ROLLOUTS_AT_ONCE", rollouts_at_once)
        async with world(tmp_path / str(rollouts_at_once)) as w:
            w.hosts[0].verify = verify
            outcome = await finish(w.evaluation(w.plan(ROWS, min_coverage=0.5)), *w.hosts)
        assert outcome.state == "Complete"
        bundles.append(bundle(w.paths))
    files = {str(file.relative_to(bundles[0])) for file in bundles[0].rglob("*") if file.is_file()}
    assert files == {str(file.relative_to(bundles[1])) for file in bundles[1].rglob("*") if file.is_file()}
    differing = {"metadata.json", "run.json", "provenance.json"}  # times, and where bundle and model lie
    for file in files - differing:
        # Within a part, failed trials come after the others.
        once, parts = (sorted((each / file).read_bytes().splitlines()) for each in bundles)
        assert once == parts, file
    assert len(json_lines(bundles[1] / "trials.jsonl")) == 10
    metadata = json.loads((bundles[1] / "metadata.json").read_text())
    assert metadata["target"] == json.loads((bundles[0] / "metadata.json").read_text())["target"]


async def test_no_more_trials_are_held_than_are_scored_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    run = AgentEvaluator.run

    async def watched(self: AgentEvaluator, **arguments: Any) -> Any:
        gc.collect()
        held.append(sum(type(each) is CandidateEvidence for each in gc.get_objects()))
        return await run(self, **arguments)

    monkeypatch.setattr(AgentEvaluator, "run", watched)
    monkeypatch.setattr("nhx_gym_operator.evaluator.trials.ROLLOUTS_AT_ONCE", 6)
    async with world(tmp_path) as w:
        outcome = await finish(w.evaluation(w.plan([row(number) for number in range(12)])), *w.hosts)
    assert outcome.progress.done == 24 and outcome.aggregates[0].count == 24
    assert len(held) == 4 and max(held) - held[0] <= 6


async def test_a_journal_of_another_dataset_is_refused_by_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
        outcome = await asyncio.wait_for(w.evaluation(w.plan(ROWS[:3], attempt=2)).run(), 60)
    assert outcome.state == "Failed" and "dataset_digest" in outcome.message


async def test_an_evaluation_that_is_told_to_end_says_so_and_how_far_it_came(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].delay_s = 30
        evaluation = w.evaluation(w.plan(ROWS))
        work = asyncio.create_task(evaluation.run())
        w.hosts[0].evaluator = await evaluator_url(evaluation)
        await w.hosts[0].register()
        await asyncio.sleep(0.3)
        assert decode_outcome(w.paths.termination_log.read_bytes()).state == "Running"
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(work, 30)
    outcome = decode_outcome(w.paths.termination_log.read_bytes())
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "EvaluatorLost", "killed")
    assert outcome.progress.total == 10
    assert w.hosts[0].shut_down


async def test_an_unreadable_dataset_fails_before_any_host_is_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        plan = w.plan(ROWS)
        Path(plan.dataset_file).write_text('{"responses_create_params": {"input": "x"}}\n{"a": NaN}\n')
        outcome = await asyncio.wait_for(w.evaluation(plan).run(), 60)
    assert (outcome.state, outcome.reason) == ("Failed", "DatasetInvalid")
    assert "ConfigMap rows key rows.jsonl, line 2" in outcome.message and "NaN" in outcome.message


async def refuse_question_1(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if prompt_of(body) == "question 1":
        return web.json_response({"error": {"message": "no such deployment"}}, status=404)
    return web.json_response(chat(prompt_of(body).split()[-1]))


async def swallowed(tmp_path: Path, *, status_of: Any = refuse_question_1, **host: Any) -> tuple[Outcome, World]:
    """The outcome of a job whose agent takes a failed call for an empty answer, and whose verifier likes anything."""
    async with world(tmp_path) as w:
        w.model.answer = status_of
        w.hosts[0].swallows, w.hosts[0].verify = True, lambda row, text: 1.0
        for name, value in host.items():
            setattr(w.hosts[0], name, value)
        return await finish(w.evaluation(w.plan(ROWS, min_coverage=0.5)), *w.hosts), w


@pytest.mark.parametrize("told_by", ["names_rollouts", "captures"])
async def test_what_an_environment_makes_of_an_empty_answer_is_no_reward(tmp_path: Path, told_by: str) -> None:
    untold = {"names_rollouts": False, "captures": False, "delay_s": 0.05}
    outcome, w = await swallowed(tmp_path, **untold | {told_by: True})
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", 0.8, "model")
    assert "2 model" in outcome.degraded[0] and "no such deployment" in outcome.degraded[0]
    assert outcome.progress.notices == []
    failed = [trial for trial in json_lines(bundle(w.paths) / "trials.jsonl") if trial["status"] == "failed"]
    assert [trial["error"]["type"] for trial in failed] == ["model"] * 2


async def test_what_each_rollout_cost_is_in_the_bundle_as_the_gateway_counted_it(tmp_path: Path) -> None:
    def forge(example: dict[str, Any], _: str) -> float:
        example["_nhx_model_usage"] = {"policy": {"calls": 1_000_000}}
        return 1.0

    outcome, w = await swallowed(tmp_path, verify=forge)
    lines = json_lines(bundle(w.paths) / "model_usage.jsonl")
    assert [(line["_ng_task_index"], line["_ng_rollout_index"]) for line in lines] == ALL
    answered = {"calls": 1, "input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
    for line in lines:
        used = line["models"]["policy"]
        assert used.pop("seconds") > 0
        assert used == ({"failed_calls": 1} if line["_ng_task_index"] == 1 else answered)
    assert "_nhx_model_usage" not in (bundle(w.paths) / "gym_run" / "rollouts.jsonl").read_text()
    assert outcome.usage["policy"].total_tokens == 8 * 120


async def test_an_over_long_prompt_is_told_apart_from_zeros_and_is_none(tmp_path: Path) -> None:
    async def too_long(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if prompt_of(body) == "question 1":
            words = "This model's maximum context length is 10 tokens. However, you requested 11 tokens"
            return web.json_response({"error": {"message": words}}, status=400)
        return web.json_response(chat(prompt_of(body).split()[-1]))

    outcome, _ = await swallowed(tmp_path, status_of=too_long)
    assert (outcome.state, outcome.coverage, outcome.failure_class) == ("Complete", 0.8, "context")
    assert "2 context" in outcome.degraded[0] and "maximum context length" in outcome.degraded[0]
    assert outcome.aggregates[0].value == 1.0


async def test_failed_calls_that_nothing_tells_apart_are_said_beside_the_number(tmp_path: Path) -> None:
    outcome, _ = await swallowed(tmp_path, names_rollouts=False, captures=False, delay_s=0.05)
    (notice,) = outcome.progress.notices
    assert notice.type == "ModelCallsUnplaced" and "no such deployment" in notice.message


async def test_an_evaluator_that_is_started_again_after_its_end_says_the_same_and_asks_nobody(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        plan = w.plan(ROWS)
        outcome = await finish(w.evaluation(plan), *w.hosts)
        w.paths.termination_log.unlink()
        again = await asyncio.wait_for(w.evaluation(plan).run(), 60)
    assert again == outcome == decode_outcome(w.paths.termination_log.read_bytes())
    assert len(w.hosts[0].rollouts) == 10


async def test_an_evaluator_that_is_started_again_midway_finds_its_hosts_and_collects_what_is_missing(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        host, plan = w.hosts[0], w.plan(ROWS)
        w.model.wrong = frozenset({"3"})
        host.delay_s = 0.3
        first = w.evaluation(plan)
        work = asyncio.create_task(finish(first, host))
        async with asyncio.timeout(60):
            while first.progress.done < 3:
                await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        recorded = first.progress.done
        # As a process leaves it that is killed while it writes the bundle.
        left = w.paths.attempt(1) / ".whole-left"
        left.mkdir()

        again = w.evaluation(plan)
        rest = asyncio.create_task(again.run())
        host.evaluator = await evaluator_url(again)
        # As it does every few seconds: not from its start, and by the boot id that it had.
        await host.register()
        outcome = await asyncio.wait_for(rest, 120)
    assert (outcome.state, outcome.progress.attempt, outcome.progress.done) == ("Complete", 1, 10)
    assert outcome.aggregates[0].value == pytest.approx(0.8)
    assert len(host.rollouts) <= 10 + plan.target.concurrency and recorded >= 3
    assert not left.exists()
    lines = (json.loads(line)["record"] for line in w.paths.journal.read_text().splitlines())
    results = [(each["task"], each["rollout"]) for each in lines if each["kind"] == "result"]
    assert sorted(results) == ALL, "each is recorded once"
