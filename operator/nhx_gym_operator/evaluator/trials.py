"""The journal's rollouts as the SDK's trials, and as the files that Gym writes of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nhx_evals_sdk.agent_eval.runtimes.gym.config import model_call_capture_dir
from nhx_evals_sdk.agent_eval.runtimes.gym.records import NG_ROLLOUT_INDEX, NG_TASK_INDEX
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

from ..api.constants import Placement
from ..api.wire.mounts import GYM_RUN
from ..api.wire.plans import EvaluatorPlan
from ..api.wire.reports import FailureClass
from ..api.wording import some_of
from . import gym_files
from .gym_files import json_line, write_rows
from .journal import Journal
from .rollouts import AGENT_REF, MODEL_CALLS, MODEL_USAGE, Failure, Rollout, RolloutKey, rollouts_of, task_row

NOT_COLLECTED = Failure(FailureClass.KILLED, "not collected before the job ended")
ROLLOUTS_AT_ONCE = 500
"""Of each, the SDK needs some 35 KiB while it scores them and writes them down."""
BYTES_AT_ONCE = 32 << 20
"""Of their results in the journal, of which the SDK holds several copies. A larger result is scored alone."""
UNCAPTURED_SHOWN = 5
USAGE = "model_usage.jsonl"
"""In the bundle, beside the SDK's files: what the gateway counted, a line for each rollout."""

log = logging.getLogger(__name__)

Collect = Callable[[list[Rollout]], Awaitable[list[dict[str, Any]] | None]]
"""Collects what the journal lacks of these rollouts and returns Gym's aggregates over all its results."""


class JournaledGymRunner:
    """An `AgentTaskRunner` of the SDK whose trials come from the journal, however they got there.

    `collect` comes first, over all tasks; `run_tasks` then makes trials of some of them at a time. A rollout without a
    reward becomes a failed trial with an error whose type is its `FailureClass`. `unrecorded` is the failure of
    rollouts that the journal says nothing about; whoever collects may set it.
    """

    def __init__(self, plan: EvaluatorPlan, journal: Journal, directory: Path, collect: Collect) -> None:
        self.unrecorded = NOT_COLLECTED
        self.unreadable: dict[RolloutKey, Failure] = {}
        """Of rollouts whose results the SDK cannot read: failures, though the journal has a reward for each."""
        self._uncaptured: set[RolloutKey] = set()
        """Of those with a result: a model answered them, and the bundle has none of their calls."""
        self._plan = plan
        self._journal = journal
        self._directory = directory
        self._model_calls = model_call_capture_dir(directory)
        self._collect = collect
        self._rollouts: list[Rollout] = []
        self._part: Sequence[Rollout] = ()
        """Those whose trials are made now."""
        self._aggregations: dict[str, Any] | None = None

    async def collect(self, tasks: Sequence[AgentEvalTask]) -> None:
        """Collect what the journal lacks, and write what Gym is given and what it computes over all."""
        # A directory that an interrupted try of the same attempt left behind holds nothing that the
        # journal lacks, and Gym appends to its files.
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        rows = (task_row(task, index) for index, task in enumerate(tasks))
        await asyncio.to_thread(write_rows, self._directory / gym_files.INPUT, rows)
        rollouts = rollouts_of(tasks, num_repeats=self._plan.target.num_repeats, agent=agent_name(self._plan))
        self._rollouts = rollouts
        self._write_aggregates(await self._collect(rollouts))
        # After collection: a Gym in this container writes there what it was given at a time.
        inputs = self._directory / gym_files.MATERIALIZED_INPUTS
        await asyncio.to_thread(write_rows, inputs, (rollout.row for rollout in rollouts))
        # Of what each task has there, which may be much, the SDK makes no aggregates.
        read = read_run_aggregations(self._output) or {}
        self._aggregations = {agent: {"agent_metrics": each.get("agent_metrics")} for agent, each in read.items()}

    def parts(self) -> Iterator[Sequence[Rollout]]:
        """All rollouts in order, as many at a time as are to be scored at once."""
        part: list[Rollout] = []
        size = 0
        for rollout in self._rollouts:
            more = self._journal.results.size(rollout.key)
            if part and (len(part) == ROLLOUTS_AT_ONCE or size + more > BYTES_AT_ONCE):
                yield self._begin(part)
                part, size = [], 0
            part.append(rollout)
            size += more
        if part:
            yield self._begin(part)

    def _begin(self, part: Sequence[Rollout]) -> Sequence[Rollout]:
        self._part = part
        return part

    async def run_tasks(
        self, tasks: Sequence[AgentEvalTask], config: AgentEvalRunConfig | None = None
    ) -> list[AgentEvalTrial]:
        """Write Gym's files for the part alone that is scored now, and read them back as trials."""
        # In a thread, since the API has to answer meanwhile.
        return await asyncio.to_thread(self._trials, tasks)

    def _trials(self, tasks: Sequence[AgentEvalTask]) -> list[AgentEvalTrial]:
        try:
            return self._read_back(tasks, self._part)
        except Exception:
            log.exception("the SDK cannot read a part of the results: each of them is tried alone")
        for task in tasks:
            for rollout in self._part:
                if rollout.task_id == task.id and rollout.key in self._journal.results:
                    try:
                        self._read_back([task], [rollout])
                    except Exception as error:
                        words = f"the SDK cannot read its result: {type(error).__name__}: {error}"
                        used = self._journal.results[rollout.key].get(MODEL_USAGE, {})
                        self.unreadable[rollout.key] = Failure(FailureClass.ENVIRONMENT, words, used)
        return self._read_back(tasks, self._part)

    def _read_back(self, tasks: Sequence[AgentEvalTask], rollouts: Sequence[Rollout]) -> list[AgentEvalTrial]:
        self._write(rollouts)
        trials = trials_from_rollouts(
            self._output,
            tasks,
            {rollout.key.task: rollout.task_id for rollout in rollouts},
            reward_key=self._plan.target.reward_key,
            capture_dir=self._captures(),
        )
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

    @property
    def _output(self) -> Path:
        return self._directory / gym_files.ROLLOUTS

    def _write(self, rollouts: Sequence[Rollout]) -> None:
        names = (self._output, self._directory / gym_files.FAILURES, self._directory.with_name(USAGE))
        with contextlib.ExitStack() as stack:
            results, failures, usages = (stack.enter_context(name.open("w", encoding="utf-8")) for name in names)
            for rollout in rollouts:
                if rollout.key in self._journal.results and rollout.key not in self.unreadable:
                    result = self._without_calls(self._journal.results[rollout.key])
                    used = result.pop(MODEL_USAGE, {})
                    captured = (self._model_calls / str(capture_filename(result))).exists()
                    if not captured and any(each.get("calls") for each in used.values()):
                        self._uncaptured.add(rollout.key)
                    results.write(json_line(result))
                else:
                    failure = self._failure(rollout.key)
                    used = failure.model_usage
                    failures.write(json_line(_failure_row(rollout, failure)))
                usages.write(json_line({**_identity(rollout), "task_id": rollout.task_id, "models": used}))

    def warnings(self) -> list[str]:
        """What the bundle lacks though nothing failed: model calls, by the names of their rollouts."""
        uncaptured = sorted(self._uncaptured - self.unreadable.keys())
        if not uncaptured:
            return []
        names = some_of([f"{key.task}-{key.rollout}" for key in uncaptured], UNCAPTURED_SHOWN)
        return [
            f"{GYM_RUN}/{self._model_calls.name} lacks {len(uncaptured)} of {len(self._rollouts)} rollouts, though a "
            f"model answered them: {names}. Gym captured none of their calls, or more than is taken; their "
            "rewards and counted tokens stand"
        ]

    def failures(self) -> list[Failure]:
        """Why each rollout without a score has none."""
        results = self._journal.results
        without = (each.key for each in self._rollouts if each.key not in results or each.key in self.unreadable)
        return [self._failure(key) for key in without]

    def _failure(self, key: RolloutKey) -> Failure:
        return self.unreadable.get(key) or self._journal.failures.get(key, self.unrecorded)

    def _write_aggregates(self, aggregates: list[dict[str, Any]] | None) -> None:
        file = self._directory / gym_files.AGGREGATE_METRICS
        file.unlink(missing_ok=True)
        if aggregates is not None:
            with file.open("w", encoding="utf-8") as out:
                json.dump(aggregates, out, indent=2, allow_nan=False)

    def _captures(self) -> Path | None:
        return self._model_calls if self._model_calls.is_dir() else None

    def _without_calls(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The row as Gym writes it; the model calls that came with it go where Gym keeps them."""
        row = dict(result)
        calls, name = row.pop(MODEL_CALLS, None), capture_filename(row)
        if isinstance(calls, list) and calls and name:
            self._model_calls.mkdir(exist_ok=True)
            write_rows(self._model_calls / name, calls)
        return row


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


def _identity(rollout: Rollout) -> dict[str, Any]:
    return {NG_TASK_INDEX: rollout.key.task, NG_ROLLOUT_INDEX: rollout.key.rollout}


def _failure_row(rollout: Rollout, failure: Failure) -> dict[str, Any]:
    return {
        **_identity(rollout),
        "_ng_failure_class": failure.failure_class.value,
        AGENT_REF: rollout.agent_ref,
        "error": f"{failure.failure_class.value}: {failure.message}",
    }
