"""From the journal to the SDK's result and bundle: the same steps for both placements."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator
from nhx_evals_sdk.agent_eval.results import AgentEvalResult
from nhx_evals_sdk.agent_eval.runtimes.gym.config import model_call_capture_dir
from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import materialize_dataset
from nhx_evals_sdk.agent_eval.runtimes.gym.records import read_jsonl
from nhx_evals_sdk.agent_eval.runtimes.gym.results import (
    aggregate_scores_from_gym,
    capture_filename,
    read_run_aggregations,
    trials_from_rollouts,
)
from nhx_evals_sdk.agent_eval.runtimes.provenance import redact_credentials
from nhx_evals_sdk.agent_eval.tasks import AgentEvalRunConfig, AgentEvalTask
from nhx_evals_sdk.agent_eval.trials import AgentEvalTrial, RunnerInfo, TrialError
from nhx_evals_sdk.values.results import AggregateScore

from nhx_gym_operator.api.wire import EvaluatorPlan, FailureClass, Placement

from .journal import Journal
from .rollouts import AGENT_REF, MODEL_CALLS, Failure, Rollout, rollouts_of, strict_json

NOT_COLLECTED = Failure(FailureClass.KILLED, "not collected before the job ended")

log = logging.getLogger(__name__)

Collect = Callable[[list[Rollout]], Awaitable[list[dict[str, Any]] | None]]
"""Collects what the journal lacks of these rollouts and returns Gym's aggregates over all its results."""


class JournaledGymRunner:
    """An `AgentTaskRunner` of the SDK whose trials come from the journal, however they got there.

    A rollout without a reward becomes a failed trial with an error whose type is its `FailureClass`.
    `unrecorded` is the failure of rollouts that the journal says nothing about; `collect` may set it.
    """

    def __init__(self, plan: EvaluatorPlan, journal: Journal, directory: Path, collect: Collect) -> None:
        self.unrecorded = NOT_COLLECTED
        self._plan = plan
        self._journal = journal
        self._directory = directory
        self._collect = collect
        self._aggregations: dict[str, Any] | None = None

    async def run_tasks(
        self, tasks: Sequence[AgentEvalTask], config: AgentEvalRunConfig | None = None
    ) -> list[AgentEvalTrial]:
        """Collect what is missing, write Gym's files, and read them back as trials."""
        target = self._plan.target
        # A directory that an interrupted try of the same attempt left behind holds nothing that the
        # journal lacks, and Gym appends to its files.
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        rows_file = self._directory / "gym_input.jsonl"
        task_ids = materialize_dataset(tasks, rows_file)
        agent = agent_name(self._plan)
        rollouts = rollouts_of(read_jsonl(rows_file), task_ids, num_repeats=target.num_repeats, agent=agent)
        aggregates = await self._collect(rollouts)
        # In a thread, since large files would keep the API from answering.
        return await asyncio.to_thread(self._trials, tasks, task_ids, rollouts, aggregates)

    def _trials(
        self,
        tasks: Sequence[AgentEvalTask],
        task_ids: Mapping[int, str],
        rollouts: Sequence[Rollout],
        aggregates: list[dict[str, Any]] | None,
    ) -> list[AgentEvalTrial]:
        output = self._write(rollouts, aggregates)
        self._aggregations = read_run_aggregations(output)
        reward_key = self._plan.target.reward_key
        trials = trials_from_rollouts(output, tasks, task_ids, reward_key=reward_key, capture_dir=self._captures())
        return [_with_error(trial) for trial in trials]

    def run_aggregate_scores(self) -> Sequence[AggregateScore]:
        """Gym's own aggregates as `runner.gym.*`, in Gym's units; its duplicate of the reward is dropped."""
        return aggregate_scores_from_gym(self._aggregations)

    def runner_info(self) -> RunnerInfo:
        """What ran, for the bundle. Holds no credential: free-form settings are redacted by the SDK."""
        target = self._plan.target
        config = target.model_dump(mode="json", exclude={"hydra_params", "env_vars"})
        config |= {
            "mode": self._plan.placement.value.lower(),
            "hydra_params": redact_credentials(target.hydra_params),
            "env_vars": redact_credentials(target.env_vars),
            "models": {route.name: route.model for route in self._plan.models},
        }
        return RunnerInfo(name="gym", kind="runner", config=config)

    def _write(self, rollouts: Sequence[Rollout], aggregates: list[dict[str, Any]] | None) -> Path:
        output = self._directory / "rollouts.jsonl"
        results, failures = [], []
        for rollout in rollouts:
            result = self._journal.results.get(rollout.key)
            if result is None:
                failures.append(_failure_row(rollout, self._journal.failures.get(rollout.key, self.unrecorded)))
            else:
                results.append(self._without_calls(result))
        _write_rows(output, results)
        _write_rows(output.with_name("rollouts_failures.jsonl"), failures)
        aggregates_file = output.with_name("rollouts_aggregate_metrics.json")
        aggregates_file.unlink(missing_ok=True)
        if aggregates is not None:
            text = json.dumps(strict_json(aggregates), indent=2, allow_nan=False)
            aggregates_file.write_text(text, encoding="utf-8")
        return output

    def _captures(self) -> Path | None:
        directory = model_call_capture_dir(self._directory)
        return directory if directory.is_dir() else None

    def _without_calls(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The row as Gym writes it; the model calls that came with it go where Gym keeps them."""
        row = dict(result)
        calls, name = row.pop(MODEL_CALLS, None), capture_filename(row)
        if isinstance(calls, list) and calls and name:
            directory = model_call_capture_dir(self._directory)
            directory.mkdir(exist_ok=True)
            _write_rows(directory / name, calls)
        return row


async def evaluate(
    plan: EvaluatorPlan, tasks: Sequence[AgentEvalTask], runner: JournaledGymRunner, work_dir: Path
) -> AgentEvalResult:
    """Run the SDK's evaluator and write its bundle to `work_dir`."""
    config = AgentEvalRunConfig(
        work_dir=work_dir,
        run_id=f"{plan.job}-{plan.uid[:8]}-{plan.attempt}",
        parallelism=plan.parallelism,
        fail_fast=plan.fail_fast,
        labels=plan.labels,
    )
    result = await AgentEvaluator().run(tasks=tasks, target=runner, config=config)
    await asyncio.to_thread(result.persist)
    return result


def agent_name(plan: EvaluatorPlan) -> str:
    """The agent that rows without `agent_ref` go to: an instance of the host's configuration, or, for a
    Gym that the command line configures, the agent itself."""
    return plan.target.agent_instance if plan.placement is Placement.SANDBOXED else plan.target.agent


def _with_error(trial: AgentEvalTrial) -> AgentEvalTrial:
    """A failed trial with the class of its failure where the SDK's summary counts errors by type."""
    text = trial.metadata.get("gym_failure")
    if not isinstance(text, str):
        return trial
    kind, _, message = text.partition(": ")
    return trial.model_copy(update={"error": TrialError(type=kind, message=message)})


def _failure_row(rollout: Rollout, failure: Failure) -> dict[str, Any]:
    return {
        "_ng_task_index": rollout.key.task,
        "_ng_rollout_index": rollout.key.rollout,
        "_ng_failure_class": failure.failure_class.value,
        AGENT_REF: rollout.row[AGENT_REF],
        "error": f"{failure.failure_class.value}: {failure.message}",
    }


def _write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, allow_nan=False) + "\n")
