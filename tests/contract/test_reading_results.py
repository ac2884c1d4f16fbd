"""The bundle, read as the documentation reads it: with the SDK, after it was moved."""

from __future__ import annotations

import asyncio
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator
from nhx_evals_sdk.agent_eval.persistence import read_trials
from nhx_evals_sdk.agent_eval.results import AgentEvalResult, AgentEvalSummary, numeric_metric_values
from nhx_evals_sdk.agent_eval.runtimes.gym import discover_gym_tasks
from nhx_evals_sdk.agent_eval.scores import AgentEvalTaskScore
from nhx_evals_sdk.agent_eval.trials import AgentEvalTrial
from nhx_evals_sdk.values.results import AggregateRangeScore, AggregateScalarScore

from contract.pages import table
from contract.runs import BROKEN, METRICS, REPEATS, ROWS, WRONG, Finished
from nhx_gym_operator.api.status import JobStatus
from unit.evaluator_fakes import write_rows

REWARD = "gym_reward.reward"
FILES = [file.strip("`") for file, _ in table("reading-results", "File")]


def summary(run: Finished) -> AgentEvalSummary:
    return AgentEvalSummary.model_validate(run.json("summary.json"))


def row_of(run: Finished, answer: str) -> str:
    """The task id of the row with this expected answer."""
    (task,) = [t for t in run.lines("tasks.jsonl") if t["metadata"]["gym_row_extras"]["expected_answer"] == answer]
    return task["id"]


def moved(run: Finished, folder: Path) -> Path:
    return Path(shutil.copytree(run.bundle, folder / "elsewhere"))


@pytest.mark.parametrize("placement", ["whole", "beside"])
def test_the_bundle_has_the_documented_files(placement: str, request: pytest.FixtureRequest) -> None:
    run: Finished = request.getfixturevalue(placement)
    assert len(FILES) == 7 and not [name for name in FILES if not (run.bundle / name).is_file()]


def test_the_manifest_names_the_run_and_maps_its_files(whole: Finished) -> None:
    manifest = whole.json("run.json")
    assert manifest["run_id"] == f"mcqa-{whole.plan.uid[:8]}-1"
    assert set(manifest["artifacts"].values()) == {name for name in FILES if name not in ("run.json", "report.html")}
    assert {score["run_id"] for score in whole.lines("scores.jsonl")} == {manifest["run_id"]}


def test_the_status_says_where_the_bundle_lies(whole: Finished) -> None:
    assert whole.outcome.results_path == whole.bundle.name == "attempt-1"


def test_there_is_one_score_for_each_task_trial_and_metric(partly: Finished) -> None:
    scores = [AgentEvalTaskScore.model_validate(score) for score in partly.lines("scores.jsonl")]
    keys = {(score.task_id, score.trial_id, score.metric_type) for score in scores}
    assert len(scores) == len(keys) == len(ROWS) * REPEATS
    assert {score.metric_type for score in scores} == {"gym_reward"}
    assert {score.status.value for score in scores} == {"completed", "failed"}


def test_a_trial_has_a_status_an_output_and_evidence(partly: Finished) -> None:
    trials = [AgentEvalTrial.model_validate(trial) for trial in partly.lines("trials.jsonl")]
    broken = row_of(partly, BROKEN)
    for trial in trials:
        if trial.task_id == broken:
            assert trial.status.value == "failed" and trial.error and trial.error.type == "environment"
            assert "no such table" in trial.error.message
        else:
            assert trial.status.value == "completed" and trial.output and trial.evidence


def test_a_score_is_the_reward_of_its_attempt(whole: Finished) -> None:
    rewards = {
        (r["_ng_task_index"], r["_ng_rollout_index"]): r["reward"] for r in whole.lines("gym_run/rollouts.jsonl")
    }
    scores = whole.lines("scores.jsonl")
    for score in scores:
        stamped = score["metadata"]["trial_metadata"]
        (output,) = score["outputs"]
        key = (stamped["_ng_task_index"], stamped["_ng_rollout_index"])
        assert output == {"name": "reward", "value": rewards.pop(key)}
    assert not rewards and {score["outputs"][0]["value"] for score in scores} == {0.0, 1.0}


def test_a_range_aggregate_counts_what_was_measured_and_what_was_not(partly: Finished) -> None:
    reward = summary(partly).scores.score(REWARD)
    assert (reward.count, reward.nan_count, reward.mean) == (8, 2, 0.75)
    assert (reward.min, reward.max) == (0.0, 1.0) and reward.std_dev and reward.sample_std_dev


def test_coverage_adds_up(partly: Finished) -> None:
    coverage = summary(partly).metric_coverage["gym_reward"]["reward"]
    assert (coverage.total, coverage.scored, coverage.missing, coverage.failed) == (10, 8, 0, 2)
    assert partly.outcome.coverage == 0.8


def test_values_of_a_task_name_their_trial_and_a_dead_trial_is_none(partly: Finished) -> None:
    values = summary(partly).task_metric_values
    ids = {trial["id"] for trial in partly.lines("trials.jsonl")}
    assert {record.trial_id for by_output in values.values() for record in by_output[REWARD]} == ids
    assert numeric_metric_values(values[row_of(partly, BROKEN)][REWARD]) == [None, None]
    assert numeric_metric_values(values[row_of(partly, WRONG)][REWARD]) == [0.0, 0.0]
    assert {record.value_type.value for record in values[row_of(partly, BROKEN)][REWARD]} == {"missing"}


def test_outcomes_can_be_narrowed_to_the_reward(partly: Finished) -> None:
    narrowed = summary(partly).task_outcomes(REWARD)
    assert [per_task.task_id for per_task in narrowed] == sorted(task["id"] for task in partly.lines("tasks.jsonl"))
    assert {outcome.metric_name for per_task in narrowed for outcome in per_task.outcomes} == {REWARD}
    assert not any(per_task.outcomes for per_task in summary(partly).task_outcomes("gym_reward.other"))


def test_the_summary_counts_tasks_trials_and_scores(partly: Finished) -> None:
    counted = summary(partly)
    assert (counted.task_count, counted.trial_count, counted.score_count) == (5, 10, 10)


def test_pass_at_k_is_over_tasks_and_a_failed_trial_did_not_pass(whole: Finished, partly: Finished) -> None:
    for run, mean in ((whole, 0.8), (partly, 0.6)):
        for k in range(1, REPEATS + 1):
            score = summary(run).scores.score(f"{REWARD}.pass@{k}")
            assert (score.count, score.mean) == (5, pytest.approx(mean))
    assert f"{REWARD}.pass@{REPEATS + 1}" not in summary(whole).scores.scores_by_name


def test_the_metadata_say_labels_target_times_and_the_sdks_version(whole: Finished) -> None:
    metadata = whole.json("metadata.json")
    assert metadata["labels"] == {"benchmark": "mcqa"}
    assert (metadata["target"]["name"], metadata["target"]["config"]["models"]) == ("gym", {"policy": "org/Name-3.2"})
    assert metadata["sdk_version"] == version("nemo-helix-plugin")
    assert metadata["started_at"] < metadata["finished_at"] and metadata["duration_sec"] > 0


def test_evidence_is_named_relative_to_the_bundle_and_found_after_a_move(whole: Finished, tmp_path: Path) -> None:
    for trial in whole.lines("trials.jsonl"):
        refs = [each["ref"] for each in trial["evidence"]["descriptors"].values() if each["ref"]]
        assert "gym_run/rollouts.jsonl" in refs and not [ref for ref in refs if Path(ref).is_absolute()]
    folder = moved(whole, tmp_path)
    for trial in read_trials(folder):
        for descriptor in trial.evidence.descriptors.values() if trial.evidence else ():
            assert descriptor.ref is None or Path(descriptor.ref).is_relative_to(folder)
            assert descriptor.ref is None or Path(descriptor.ref).is_file()


def test_a_trials_trace_is_read_by_the_documented_handle(whole: Finished) -> None:
    async def look() -> None:
        for trial in read_trials(whole.bundle):
            assert trial.evidence
            trace = await trial.evidence.trace()
            assert trace.format == "otlp" and await trace.resource_spans()
            with pytest.raises(KeyError):
                await trial.evidence.trace(format="atif")

    asyncio.run(look())


def test_a_trials_measurements_are_the_tokens_that_gym_reported(whole: Finished) -> None:
    for trial in read_trials(whole.bundle):
        measured = trial.measurements
        assert (measured.prompt_tokens, measured.completion_tokens, measured.total_tokens) == (100, 20, 120)


def test_a_stored_run_can_be_scored_again(whole: Finished, tmp_path: Path) -> None:
    tasks = discover_gym_tasks(write_rows(tmp_path / "dataset.jsonl", ROWS))
    again = AgentEvaluator().run_sync(tasks=tasks, trials=read_trials(moved(whole, tmp_path)))
    stored, fresh = summary(whole).scores.score(REWARD), again.summary.scores.score(REWARD)
    assert (fresh.mean, fresh.count) == (stored.mean, stored.count)


def test_gyms_aggregates_keep_their_shape_and_its_reward_is_dropped(whole: Finished) -> None:
    scores = summary(whole).scores.scores_by_name
    gym = {name.removeprefix("runner.gym."): score for name, score in scores.items() if name.startswith("runner.gym.")}
    assert set(gym) == {"input_tokens", "mean/lonely", "pass@1/accuracy"}
    tokens, lonely, accuracy = gym["input_tokens"], gym["mean/lonely"], gym["pass@1/accuracy"]
    assert isinstance(tokens, AggregateRangeScore) and (tokens.mean, tokens.sample_std_dev) == (100.0, 0.0)
    for score in (lonely, accuracy):
        assert isinstance(score, AggregateScalarScore) and score.mean is None
    assert accuracy.value == METRICS["pass@1/accuracy"]


def test_the_status_shows_the_headline_of_either_shape(whole: Finished) -> None:
    headlines = {score.name: score.headline_value for score in summary(whole).scores.scores}
    shown = {aggregate.name: aggregate for aggregate in whole.outcome.aggregates}
    assert {name: aggregate.value for name, aggregate in shown.items()} == headlines
    scalar, in_a_range = shown["runner.gym.pass@1/accuracy"], shown["runner.gym.input_tokens"]
    assert (scalar.kind, scalar.mean) == ("scalar", None)
    assert (in_a_range.kind, in_a_range.mean) == ("range", 100.0)


def test_the_reward_is_on_0_to_1_and_gyms_accuracy_on_0_to_100(whole: Finished) -> None:
    scores = summary(whole).scores
    assert scores.score(REWARD).headline_value == pytest.approx(0.8)
    assert scores.score("runner.gym.pass@1/accuracy").headline_value == pytest.approx(80.0)


def test_single_trials_are_in_the_bundle_and_not_in_the_status() -> None:
    assert not [name for name in JobStatus.model_fields if "trial" in name or "score" in name]


def comparable(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial without what differs between two runs of the same thing."""
    return {key: trial[key] for key in ("id", "task_id", "status", "output", "measurements", "metadata", "error")} | {
        "evidence": {name: each["ref"] for name, each in trial["evidence"]["descriptors"].items()}
    }


def test_trials_are_those_of_the_sdks_own_runner(whole: Finished, sdk: AgentEvalResult) -> None:
    assert sdk.work_dir
    theirs = [json.loads(line) for line in (Path(sdk.work_dir) / "trials.jsonl").read_text().splitlines()]
    ours = whole.lines("trials.jsonl")
    assert [comparable(trial) for trial in ours] == [comparable(trial) for trial in theirs]


def test_the_sdks_own_aggregates_are_those_of_its_own_runner(whole: Finished, sdk: AgentEvalResult) -> None:
    ours = [score for score in summary(whole).scores.scores if not score.name.startswith("runner.gym.")]
    assert [score.model_dump() for score in ours] == [score.model_dump() for score in sdk.summary.scores.scores]


def test_both_placements_give_trials_of_one_shape(whole: Finished, beside: Finished) -> None:
    def shape(value: Any) -> Any:
        return {key: shape(item) for key, item in value.items()} if isinstance(value, dict) else type(value).__name__

    first, second = (shape(comparable(run.lines("trials.jsonl")[0])) for run in (whole, beside))
    assert first.keys() == second.keys()
    assert (first["status"], first["evidence"], first["measurements"]) == (
        second["status"],
        second["evidence"],
        second["measurements"],
    )
    ids = [[trial["id"] for trial in run.lines("trials.jsonl")] for run in (whole, beside)]
    assert ids[0] == ids[1]
