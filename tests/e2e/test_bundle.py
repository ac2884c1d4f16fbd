"""A real bundle after its download, read as the documentation reads it: with the SDK alone."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator
from nhx_evals_sdk.agent_eval.persistence import read_trials
from nhx_evals_sdk.agent_eval.results import AgentEvalSummary
from nhx_evals_sdk.agent_eval.runtimes.gym import GymRewardMetric
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask

from e2e.manifests import MCQA_TASKS, REPEATS
from e2e.runs import Run, rows_of, strict_json

BOTH = pytest.mark.parametrize("run", ["mcqa_gvisor", "mcqa_colocated"], indirect=True)


@BOTH
def test_stored_trials_give_the_same_scores_when_they_are_scored_again(run: Run) -> None:
    assert run.bundle
    tasks = [
        AgentEvalTask.model_validate(task | {"metrics": [GymRewardMetric()]})
        for task in rows_of(run.bundle / "tasks.jsonl")
    ]
    stored = AgentEvalSummary.model_validate(strict_json((run.bundle / "summary.json").read_text()))
    again = AgentEvaluator().run_sync(tasks=tasks, trials=read_trials(run.bundle)).summary
    own = [score for score in stored.scores.scores if not score.name.startswith("runner.gym.")]
    assert [score.model_dump() for score in again.scores.scores] == [score.model_dump() for score in own]
    assert again.task_metric_values == stored.task_metric_values
    assert (again.task_count, again.trial_count) == (MCQA_TASKS, MCQA_TASKS * REPEATS)


@BOTH
async def test_the_evidence_of_every_trial_is_there_with_a_trace_of_its_model_calls(run: Run) -> None:
    assert run.bundle
    for trial in read_trials(run.bundle):
        assert trial.evidence
        refs = [descriptor.ref for descriptor in trial.evidence.descriptors.values() if descriptor.ref]
        assert refs and all(run.bundle in (run.bundle / ref).parents and (run.bundle / ref).is_file() for ref in refs)
        trace = await trial.evidence.trace(format="otlp")
        spans = [span for entry in await trace.resource_spans() for scope in entry.scope_spans for span in scope.spans]
        assert len(spans) > 1
        assert trial.measurements.prompt_tokens == 100 and trial.measurements.completion_tokens == 20


@BOTH
def test_the_metadata_name_the_sdk_that_wrote_them(run: Run) -> None:
    assert run.bundle
    metadata = strict_json((run.bundle / "metadata.json").read_text())
    assert metadata["sdk_version"] == version("nemo-helix-plugin")
    assert metadata["target"]["config"]["mode"] == run.status["placement"].lower()


@pytest.mark.parametrize("run", ["mcqa_runc", "mcqa_colocated", "rows_on_claim", "openai_model"], indirect=True)
def test_every_model_call_is_told_apart_by_its_rollout(run: Run) -> None:
    """Several rollouts are under way at once, so that only what Gym's model server passes on can tell."""
    assert run.bundle
    used = [line["models"]["policy"] for line in rows_of(run.bundle / "model_usage.jsonl")]
    assert [(each["calls"], each["total_tokens"]) for each in used] == [(1, 120)] * (MCQA_TASKS * REPEATS)


def test_so_are_those_of_a_judge(judged_runc: Run) -> None:
    assert judged_runc.bundle
    lines = rows_of(judged_runc.bundle / "model_usage.jsonl")
    assert lines and all(set(line["models"]) == {"policy", "judge"} for line in lines)
