"""Tasks as a stored taskset: JSON Lines, one task a line, as `tasks.jsonl` of a result bundle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import validate_gym_task_row
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask, as_base_task
from nhx_evals_sdk.metrics.runner_rewards import GymRewardMetric
from nhx_evals_sdk.metrics.utils import metric_type_name

from ..client.creation import CONFIG_MAP_BYTES
from .errors import SubmissionError
from .plain import plain

_REWARD = GymRewardMetric()
_ROW_INTEGERS = range(-(2**63), 2**64)
"""What orjson, with which Gym reads rows, takes for an integer."""


def taskset_text(tasks: Sequence[AgentEvalTask]) -> str:
    """Raises SubmissionError naming the task: one not made by `discover_gym_tasks`, with another metric than Gym's
    reward, or with a value that has no JSON form."""
    if not tasks:
        raise SubmissionError("tasks is empty; discover_gym_tasks makes them from a row file")
    return "".join(_line(task) + "\n" for task in tasks)


def write_taskset(tasks: Sequence[AgentEvalTask], file: Path) -> Path:
    """Writes a taskset of any size to `file`, to be put where the cluster can read it. Raises SubmissionError."""
    file.write_text(taskset_text(tasks), encoding="utf-8")
    return file


def fitting(text: str) -> str:
    """`text` if one ConfigMap holds it. Raises SubmissionError saying where a larger one goes."""
    size = len(text.encode())
    if size > CONFIG_MAP_BYTES:
        raise SubmissionError(
            f"the tasks are {size:,} bytes as JSON Lines, and a ConfigMap holds {CONFIG_MAP_BYTES:,}. Write them to a "
            "file with write_taskset, put that on a PersistentVolumeClaim or into a FileSet, and submit "
            "tasks=Tasks(taskset=Taskset(persistent_volume_claim=ClaimFile(claim_name=…, path=…))) or "
            "Taskset(file_set=FileSetFile(name=…, path=…)) of nhx_gym_operator.api.tasks"
        )
    return text


def _line(task: AgentEvalTask) -> str:
    for metric in task.metrics:
        if not isinstance(metric, GymRewardMetric) or metric.output_name != _REWARD.output_name:
            raise SubmissionError(
                f"task {task.id!r} has the metric {metric_type_name(metric)!r}, or another output of it than "
                f"{_REWARD.output_name!r}; a job scores with {metric_type_name(_REWARD)!r} and nothing else"
            )
    try:
        validate_gym_task_row(task_id=task.id, inputs=task.inputs, metadata=task.metadata)
        base = as_base_task(task)
        for field in ("inputs", "reference", "metadata"):
            plain(getattr(base, field), f"task {task.id!r}.{field}", _ROW_INTEGERS)
        return json.dumps(base.model_dump(mode="json"), sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise SubmissionError(str(error)) from None
