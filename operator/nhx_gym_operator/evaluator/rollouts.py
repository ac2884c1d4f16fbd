"""Rollouts: what is asked for, and whether an answer is one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import gym_task_row
from nhx_evals_sdk.agent_eval.runtimes.gym.records import NG_ROLLOUT_INDEX, NG_TASK_INDEX, RUNTIME_KEYS
from nhx_evals_sdk.agent_eval.runtimes.gym.results import _agent_never_ran
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask

from nhx_gym_operator.api.wire import FailureClass

AGENT_REF = "agent_ref"
MODEL_CALLS = "_nhx_model_calls"
"""Key under which a result carries its captured model calls (`MODEL_CALLS_RESULT_KEY` of
`sandboxed_gym.runtime.gym_host_runtime`)."""
MODEL_USAGE = "_nhx_model_usage"
"""Key under which a result carries what the gateway counted of the rollout's model calls, whatever came under it."""
BESIDE_GYMS = frozenset({MODEL_CALLS, MODEL_USAGE})
"""Keys of a result that Gym's own files do not have."""
MAX_MESSAGE = 2000

_WRAPPED = "calling an inner server: "
"""How `exception_handling_middleware` of nemo_gym 0.5.0 introduces the answer it passes on."""


class RolloutKey(NamedTuple):
    """One attempt at one row: Gym's `_ng_task_index` and `_ng_rollout_index`."""

    task: int
    rollout: int


@dataclass(frozen=True)
class Failure:
    """Why a rollout has no reward."""

    failure_class: FailureClass
    message: str
    model_usage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the gateway counted of its model calls, by model: `ModelUsage` without what is nothing."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout to collect: its identity, the task it belongs to, and the row that Gym gets.

    As `gym eval run` does, a row that names an agent of its own (`agent_ref`) keeps it, and repeats are
    numbered from 0 (`_preprocess_rows_from_config` in nemo_gym 0.5.0). Without both indices Gym captures
    no model calls.
    """

    key: RolloutKey
    task: AgentEvalTask
    default_agent: str

    @property
    def task_id(self) -> str:
        return self.task.id

    @property
    def row(self) -> dict[str, Any]:
        """Made anew each time: of all rollouts together they would be another copy of the dataset."""
        row = task_row(self.task, self.key.task)
        return {**row, AGENT_REF: self.agent_ref, NG_ROLLOUT_INDEX: self.key.rollout}

    @property
    def agent(self) -> str:
        """The agent instance that the row is routed to."""
        return self.agent_ref["name"]

    @property
    def agent_ref(self) -> Mapping[str, Any]:
        return self.task.metadata["gym_row_extras"].get(AGENT_REF) or {"name": self.default_agent}


def task_row(task: AgentEvalTask, index: int) -> dict[str, Any]:
    """A task's row as the SDK's `materialize_dataset` writes it; that one holds a whole dataset in memory, twice."""
    params, extras = gym_task_row(task_id=task.id, inputs=task.inputs, metadata=task.metadata)
    row = {key: value for key, value in extras.items() if key not in RUNTIME_KEYS}
    return {**row, "responses_create_params": params, NG_TASK_INDEX: index}


def rollouts_of(tasks: Sequence[AgentEvalTask], *, num_repeats: int, agent: str) -> list[Rollout]:
    """Every rollout asked for, in Gym's order: a row's repeats follow each other. A task's index is its place, as
    `materialize_dataset` numbers them."""
    return [
        Rollout(RolloutKey(index, repeat), task, agent)
        for index, task in enumerate(tasks)
        for repeat in range(num_repeats)
    ]


def stamped_result(
    rollout: Rollout, result: Mapping[str, Any], model_usage: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Gym's result as `gym eval run` would have written it, with what the gateway counted: identity and counts are our
    own, whatever the answer claims, and numbers that JSON has no word for are null (as orjson writes them)."""
    return {
        **strict_json(result),
        NG_TASK_INDEX: rollout.key.task,
        NG_ROLLOUT_INDEX: rollout.key.rollout,
        AGENT_REF: rollout.agent_ref,
        MODEL_USAGE: dict(model_usage),
    }


def judge(result: Mapping[str, Any], reward_key: str) -> float | Failure:
    """The reward of a result, read as the SDK reads it, or why there is none.

    The SDK takes a reward by `float()`: `"0.5"` is 0.5 and `true` is 1. NaN, infinities, null, a missing
    key and text are not rewards. Nor is the score of an agent that never called its model. A row that
    Gym itself marks as failed has none either (`_ng_failure_class`, `_ng_no_persist` in
    `nemo_gym/rollout_collection.py`).
    """
    if result.get("_ng_no_persist"):
        return Failure(FailureClass.KILLED, _said(result, "Gym's agent was stopped before it finished"))
    if result.get("_ng_failure_class") is not None:
        label = f"Gym reports {result['_ng_failure_class']}"
        return Failure(FailureClass.ENVIRONMENT, _said(result, label))
    if reward_key not in result:
        return Failure(FailureClass.ENVIRONMENT, f"the verifier returned no {reward_key!r}")
    raw = result[reward_key]
    try:
        reward = float(raw)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not math.isfinite(reward):
        words = f"the verifier returned {reward_key} {well_formed(str(raw)[:100])!r}: not a number"
        return Failure(FailureClass.ENVIRONMENT, words)
    if _agent_never_ran(result):
        return Failure(FailureClass.ENVIRONMENT, "the agent produced no output and never called its model")
    return reward


def innermost(text: str) -> str:
    """The cause in an error text of Gym, whose servers wrap each other's answers: what the innermost
    one said, without the escapes that each layer added."""
    _, _, cause = text.rpartition(_WRAPPED)
    return well_formed(re.sub(r"\\+(['\"])", r"\1", re.sub(r"\\+n", "\n", cause))[:MAX_MESSAGE])


def _said(result: Mapping[str, Any], label: str) -> str:
    words = next((result[key] for key in ("error", "exception", "failure_reason") if result.get(key)), None)
    return well_formed((f"{label}: {words}" if words else label)[:MAX_MESSAGE])


MAX_NESTING = 128
"""Levels of a result. The SDK's trials, which are pydantic's, take no more than some 250."""


def well_formed(text: str) -> str:
    """The text with `?` for halves of surrogate pairs, which JSON can spell and UTF-8 has no bytes for."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode()


def strict_json(value: Any, levels: int = MAX_NESTING) -> Any:
    """The value with null in place of the floats that JSON has no word for, and well-formed texts. Raises
    `RecursionError` for one nested deeper than `levels`."""
    if levels < 0:
        raise RecursionError
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {well_formed(str(key)): strict_json(item, levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item, levels - 1) for item in value]
    return value
