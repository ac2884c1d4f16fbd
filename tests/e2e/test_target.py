"""What a job may say about its target, seen where it arrives: at the model's and the judge's server, in the records, in
the words of a failure."""

from __future__ import annotations

from collections import Counter

import pytest

from e2e import bundled
from e2e.manifests import (
    GREETING,
    LONG_ROW,
    MARKS,
    REFUSAL,
    REFUSED_ROW,
    REPEATS,
    TOO_LONG,
    TOOL_TOKEN,
    VERDICT,
)  # fmt: skip
from e2e.runs import Run, rows_of
from support.job_watch import condition

JUDGED = pytest.mark.parametrize("run", ["judged_runc", "judged_colocated"], indirect=True)
JUDGED_ROLLOUTS = 5 * REPEATS


@JUDGED
def test_a_judge_beside_the_policy_is_reached_by_name_and_metered_apart(run: Run) -> None:
    usage = run.status["usage"]
    assert usage["policy"]["calls"] == usage["judge"]["calls"] == JUDGED_ROLLOUTS
    assert usage["judge"].get("failedCalls", 0) == 0
    assert run.bundle
    verdicts = [row["judge_evaluation"]["verdict_label"] for row in rows_of(run.bundle / "gym_run/rollouts.jsonl")]
    assert verdicts == [VERDICT] * JUDGED_ROLLOUTS


@JUDGED
def test_hydra_params_arrive_as_they_were_written(run: Run) -> None:
    assert {key: run.facts["marks"][key] for key in MARKS} == MARKS
    assert run.aggregates["gym_reward.reward"]["value"] == pytest.approx(0.75)


@JUDGED
def test_variables_and_secrets_reach_gym_and_may_be_referred_to(run: Run) -> None:
    assert (run.facts["marks"]["variable"], run.facts["marks"]["secret"]) == (GREETING, TOOL_TOKEN)
    assert TOOL_TOKEN not in str(run.job) + "".join(run.logs.values())


def test_a_job_nested_thousands_deep_is_refused_and_the_operator_goes_on(deep_nesting: Run) -> None:
    accepted = condition(deep_nesting.job, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert "nested more than 64 levels deep" in accepted["message"]
    assert deep_nesting.facts["operator restarts"] == [0]


@pytest.mark.parametrize("run", ["inference_provider", "openai_model"], indirect=True)
def test_an_agent_may_be_bound_by_hand(run: Run) -> None:
    assert run.job["spec"]["target"]["gym"]["bindResourcesServer"] is False
    assert run.aggregates["gym_reward.reward"]["value"] == pytest.approx(0.8)


def test_a_server_with_tools_has_them_called(tool_call: Run) -> None:
    """As in the rollouts that ship with it, which all earned their point."""
    assert tool_call.status["progress"]["summary"] == "5/5"
    assert tool_call.aggregates["gym_reward.reward"]["value"] == pytest.approx(1.0)
    assert tool_call.bundle
    kinds = [item["type"] for row in rows_of(tool_call.bundle / "gym_run/rollouts.jsonl") for item in _output(row)]
    assert "function_call" in kinds and "function_call_output" in kinds


def test_five_identical_rows_are_one_task_and_each_repeat_one_trial(blackjack: Run) -> None:
    assert blackjack.status["progress"]["summary"] == f"{REPEATS}/{REPEATS}"
    assert blackjack.bundle
    assert len(rows_of(blackjack.bundle / "tasks.jsonl")) == 1
    assert len(rows_of(blackjack.bundle / "trials.jsonl")) == REPEATS
    assert all(row["reward"] in (-1.0, 0.0, 1.0) for row in rows_of(blackjack.bundle / "gym_run/rollouts.jsonl"))


@pytest.mark.parametrize("run", ["failed_start", "failed_start_colocated"], indirect=True)
def test_a_gym_that_does_not_start_shows_the_end_of_a_log_that_is_whole_in_the_results(run: Run) -> None:
    failed = condition(run.job, "Failed")
    assert failed["reason"] == "HostStartupFailed"
    assert "gym_run/gym_env.log ends:" in failed["message"]
    assert "grading_mode" in run.facts["log"]
    last = failed["message"].rstrip().splitlines()[-1].strip()
    assert last and last[:80] in run.facts["log"]


def test_a_model_server_that_refuses_every_call_ends_the_job_in_its_words_and_nothing_is_scored(
    refused_calls: Run,
) -> None:
    failed = condition(refused_calls.job, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "ModelUnavailable")
    assert "model policy answered no call" in failed["message"] and REFUSAL in failed["message"]
    assert (refused_calls.status["progress"]["done"], refused_calls.status["progress"]["failed"]) == (0, REPEATS)
    assert "value" not in refused_calls.aggregates.get("gym_reward.reward", {})
    assert refused_calls.bundle
    assert _failures(refused_calls) == {(REFUSED_ROW, "model"): REPEATS}
    assert rows_of(refused_calls.bundle / "gym_run/rollouts.jsonl") == []


def test_an_over_long_prompt_and_a_refused_call_are_told_apart_and_neither_is_a_zero(refused_rows: Run) -> None:
    assert _failures(refused_rows) == {(REFUSED_ROW, "model"): REPEATS, (LONG_ROW, "context"): REPEATS}
    degraded = condition(refused_rows.job, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "RolloutsMissing")
    for kind, words in (("model", REFUSAL), ("context", TOO_LONG)):
        assert f"{REPEATS} {kind} (“" in degraded["message"] and words in degraded["message"]
    reward = refused_rows.aggregates["gym_reward.reward"]
    # Of the three rows that are left, the model is wrong on one.
    assert (reward["value"], reward["count"]) == (pytest.approx(2 / 3), 3 * REPEATS)


def test_a_process_that_ignores_every_signal_is_killed_after_the_grace_and_named(stubborn_child: Run) -> None:
    complete = condition(stubborn_child.job, "Complete")
    assert "did not end within 12 s (spec.target.gym.shutdownGraceSeconds) and were killed" in complete["message"]
    assert stubborn_child.bundle
    assert "stubborn child" in (stubborn_child.bundle / "gym_run/gym_env.log").read_text()


def test_another_key_of_the_record_may_hold_the_reward(another_reward: Run) -> None:
    assert another_reward.bundle
    rows = rows_of(another_reward.bundle / "gym_run/rollouts.jsonl")
    assert len(rows) == bundled.MULTI_REWARD.rows and any(row["schema_valid"] != row["reward"] for row in rows)
    mean = sum(row["schema_valid"] for row in rows) / len(rows)
    assert another_reward.aggregates["gym_reward.reward"]["value"] == pytest.approx(mean)


def test_a_start_that_takes_too_long_shows_what_gym_was_doing(slow_start_colocated: Run) -> None:
    failed = condition(slow_start_colocated.job, "Failed")
    assert failed["reason"] == "StartupTimeout"
    assert "spec.target.gym.startupTimeoutSeconds" in failed["message"] and "gym_run/gym_env.log" in failed["message"]


@pytest.mark.parametrize("run", ["slow_collection", "slow_collection_colocated"], indirect=True)
def test_a_collection_that_takes_too_long_is_ended_and_shows_what_gym_said_last(run: Run) -> None:
    failed = condition(run.job, "Failed")
    assert failed["reason"] == "CollectionTimeout"
    assert "spec.target.gym.collectionTimeoutSeconds" in failed["message"] and " ends:\n" in failed["message"]
    progress = run.status["progress"]
    assert 0 < progress["done"] < progress["total"]


def _failures(run: Run) -> Counter[tuple[int, str]]:
    """How many rollouts of which row failed in which class."""
    assert run.bundle
    rows = rows_of(run.bundle / "gym_run/rollouts_failures.jsonl")
    return Counter((row["_ng_task_index"], row["_ng_failure_class"]) for row in rows)


def _output(row: dict) -> list[dict]:
    return row["response"]["output"]
