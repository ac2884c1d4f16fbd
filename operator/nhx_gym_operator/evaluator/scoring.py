"""From trials to the SDK's result and bundle: the same steps for both placements."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from nhx_evals_sdk.agent_eval import persistence
from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator
from nhx_evals_sdk.agent_eval.results import AgentEvalResult, AgentEvalSummary
from nhx_evals_sdk.agent_eval.scores import AgentEvalTaskScore
from nhx_evals_sdk.agent_eval.tasks import AgentEvalRunConfig, AgentEvalTask
from nhx_evals_sdk.agent_eval.trials import TrialError

from ..api.wire.mounts import GYM_RUN
from ..api.wire.plans import EvaluatorPlan
from . import gym_files
from .trials import USAGE, JournaledGymRunner
from .versions import SDK_PACKAGE, deciding_versions

MANIFEST = "run.json"
TASKS = "tasks.jsonl"
_SCRATCH = ".whole-"
BUNDLE_LISTS = (TASKS, "trials.jsonl", "scores.jsonl")


async def evaluate(
    plan: EvaluatorPlan, tasks: Sequence[AgentEvalTask], runner: JournaledGymRunner, work_dir: Path
) -> AgentEvalSummary:
    """Collect, run the SDK's evaluator, and write its bundle to `work_dir`.

    The SDK holds each trial three times, with its trace. So it is given a part of the tasks at a time; what it writes
    of each part is put together, and the summary is its own over all of them.
    """
    started = datetime.now(UTC)
    await runner.collect(tasks)
    config = AgentEvalRunConfig(
        work_dir=work_dir,
        run_id=f"{plan.job}-{plan.uid[:8]}-{plan.attempt}",
        parallelism=plan.parallelism,
        labels=plan.labels,
        fail_fast=plan.fail_fast,
    )
    # Of an earlier try: whoever finds it finds all the rest.
    (work_dir / MANIFEST).unlink(missing_ok=True)
    scores: list[AgentEvalTaskScore] = []
    trials: list[_Ended] = []
    gym_run = work_dir / GYM_RUN
    files = _Parts(
        [work_dir / name for name in (*BUNDLE_LISTS, USAGE)]
        + [gym_run / name for name in (gym_files.ROLLOUTS, gym_files.FAILURES)]
    )
    last_task = -1
    for part in runner.parts():
        first = part[0].key.task
        in_part = tasks[first : part[-1].key.task + 1]
        result = await AgentEvaluator().run(tasks=in_part, target=runner, config=config)
        for score in result.scores:
            score.metadata["row_index"] += first
        await asyncio.to_thread(_write_lists, result, work_dir)
        files.take(again=first == last_task)
        last_task = part[-1].key.task
        for score in result.scores:
            score.metadata.clear()
        scores += result.scores
        trials += [_Ended(trial.id, trial.error) for trial in result.trials]
    summary = await asyncio.to_thread(
        AgentEvalSummary.from_scores,
        scores,
        tasks=tasks,
        trials=trials,
        extra_scores=runner.run_aggregate_scores(),
    )
    await asyncio.to_thread(_persist, _whole(result, scores, summary, started), files, work_dir)
    return summary


def _whole(
    part: AgentEvalResult, scores: list[AgentEvalTaskScore], summary: AgentEvalSummary, started: datetime
) -> AgentEvalResult:
    """The result over all parts, of which `part` is one. Tasks and trials are left to the files."""
    finished = datetime.now(UTC)
    about = {
        "started_at": started,
        "finished_at": finished,
        "duration_sec": (finished - started).total_seconds(),
        # The SDK looks for a distribution of its own name, but is published inside this one.
        "sdk_version": part.metadata.sdk_version or deciding_versions().get(SDK_PACKAGE),
    }
    return AgentEvalResult.model_construct(
        run_id=part.run_id,
        tasks=[],
        trials=[],
        scores=scores,
        summary=summary,
        metadata=part.metadata.model_copy(update=about),
        work_dir=part.work_dir,
    )


def _write_lists(result: AgentEvalResult, work_dir: Path) -> None:
    """The lists of a part by the SDK's own writers. Its `persist` would write a manifest, by which all is there."""
    persistence._write_jsonl(work_dir / TASKS, result.tasks)
    persistence._write_trials(work_dir / "trials.jsonl", result.trials, base=work_dir)
    persistence._write_jsonl(work_dir / "scores.jsonl", result.scores)


def _persist(whole: AgentEvalResult, files: _Parts, work_dir: Path) -> None:
    """The bundle in its place: what the SDK writes of the whole, the lists of all parts, and at last the manifest."""
    for left in work_dir.glob(f"{_SCRATCH}*"):
        # Of a process that was killed here.
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=work_dir) as scratch:
        written = Path(scratch)
        page = whole.persist(written).dashboard_path
        manifest = json.loads((written / MANIFEST).read_bytes())
        manifest |= {"output_dir": str(work_dir), "dashboard_path": page and str(work_dir / page.name)}
        (written / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        files.finish()
        for file in written.iterdir():
            if file.name not in (*BUNDLE_LISTS, MANIFEST):
                file.replace(work_dir / file.name)
        (written / MANIFEST).replace(work_dir / MANIFEST)


class _Ended(NamedTuple):
    """All that the SDK's summary reads of a trial."""

    id: str
    error: TrialError | None


class _Parts:
    """Files that are written anew for each part of a run, put together."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = {file: file.with_name(f"{file.name}.whole") for file in files}
        for whole in self._files.values():
            whole.unlink(missing_ok=True)

    def take(self, *, again: bool) -> None:
        """Add what the files hold now; `again` says that the part's first task was the last one of the part before."""
        for file, whole in self._files.items():
            with file.open("rb") as part, whole.open("ab") as out:
                if again and file.name == TASKS:
                    part.readline()
                shutil.copyfileobj(part, out)

    def finish(self) -> None:
        """Put the whole in the place of the last part."""
        for file, whole in self._files.items():
            whole.replace(file)
