"""A result bundle as the SDK's own result object: the inverse of `AgentEvalResult.persist`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nhx_evals_sdk.agent_eval.persistence import read_trials
from nhx_evals_sdk.agent_eval.results import AgentEvalResult, AgentEvalSummary, RunMetadata
from nhx_evals_sdk.agent_eval.scores import AgentEvalTaskScore
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask
from nhx_evals_sdk.metrics.runner_rewards import GymRewardMetric

from ..client.errors import UserError


def read_bundle(directory: Path) -> AgentEvalResult:
    """`directory` holds run.json. Raises UserError naming the file that is missing or no file of a bundle."""
    file = "run.json"
    try:
        run_id = _json(directory / file)["run_id"]
        file = "tasks.jsonl"
        tasks = [_task(row) for row in _rows(directory / file)]
        file = "trials.jsonl"
        trials = read_trials(directory)
        file = "scores.jsonl"
        scores = [AgentEvalTaskScore.model_validate(row) for row in _rows(directory / file)]
        file = "summary.json"
        summary = AgentEvalSummary.model_validate(_json(directory / file))
        file = "metadata.json"
        metadata = RunMetadata.model_validate(_json(directory / file))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{directory / file} is missing or no file of a whole result bundle: {error}") from None
    return AgentEvalResult(
        run_id=run_id,
        tasks=tasks,
        trials=trials,
        scores=scores,
        summary=summary,
        metadata=metadata,
        work_dir=directory,
    )


def _task(row: dict[str, Any]) -> AgentEvalTask:
    """A bundle describes metrics, it does not hold them; a job's are Gym's reward, under the name that it emits."""
    metrics = [GymRewardMetric(output_name=metric["outputs"][0]["name"]) for metric in row.pop("metrics")]
    return AgentEvalTask.model_validate({**row, "metrics": metrics})


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())
