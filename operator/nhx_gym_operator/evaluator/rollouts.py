"""Rollouts: what is asked for, and whether an answer is one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import gym_task_row
from nhx_evals_sdk.agent_eval.runtimes.gym.records import (
    NG_ATTEMPT_INDEX,
    NG_ROLLOUT_INDEX,
    NG_TASK_INDEX,
    RUNTIME_KEYS,
)
from nhx_evals_sdk.agent_eval.runtimes.gym.results import _agent_never_ran
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask

from ..api.wire.reports import FailureClass
from .untrusted import MAX_NUMBER, readable, strict_json, well_formed

AGENT_REF = "agent_ref"
MODEL_CALLS = "_nhx_model_calls"
"""Key under which a result carries its captured model calls (`MODEL_CALLS_RESULT_KEY` of
`sandboxed_gym.runtime.gym_host_runtime`)."""
MODEL_USAGE = "_nhx_model_usage"
"""Key under which a result carries what the gateway counted of the rollout's model calls, whatever came under it."""
BESIDE_GYMS = frozenset({MODEL_CALLS, MODEL_USAGE})
"""Keys of a result that Gym's own files do not have."""
MAX_FAILURE_MESSAGE = 2000
"""Characters of why one rollout has no reward, in the journal and the bundle."""
MAX_ATTEMPTS = 1000
"""A higher `_ng_attempt_index` is none of Gym's. The SDK makes a file name of it."""

_CLASSES_OF_GYM = {
    "kill_shaped": FailureClass.KILLED,
    "timeout_exceeded": FailureClass.TIMEOUT,
    "transient": FailureClass.TRANSIENT,
    "legitimate": FailureClass.LEGITIMATE,
}
"""What agents of nemo_gym 0.5.0 put into `_ng_failure_class` (`responses_api_agents/stirrup_agent/app.py` and
`pinchbench/app.py`). Any other word there is an environment's own."""
_WORDS_OF_GYM = ("error", "error_message", "exception", "failure_reason")
_WRAPPED = "calling an inner server: "
"""How `exception_handling_middleware` of nemo_gym 0.5.0 introduces the answer it passes on."""
_REFUSED = '{"detail":[{'
"""How FastAPI's answer to a body that does not fit begins (status 422). The body, which it repeats, may be cut off."""
_MISFIT = re.compile(r'"loc":\[([^\]]*)\],"msg":"([^"]*)"')
_MISFITS_SHOWN = 3
_BYTES = re.compile(r"""b(['"])("?)(.*?)\2\1[\s'"}]*""", re.DOTALL)
"""An answer as the middleware puts it, in Python's spelling of bytes, and what closed the layers around it."""
_ERROR = re.compile(r"""([A-Za-z_.]+)\((['"])((?:(?!\2, ).)*)\2,?\)""", re.DOTALL)
"""An exception with one text, as `repr` spells it."""


class RolloutKey(NamedTuple):
    """One attempt at one row: Gym's `_ng_task_index` and `_ng_rollout_index`."""

    task: int
    rollout: int


@dataclass(frozen=True)
class Failure:
    """Why a rollout has no reward."""

    failure_class: FailureClass
    message: str
    """Much of it is the environment's word: bounded, and without what a terminal would act upon."""
    model_usage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the gateway counted of its model calls, by model: `ModelUsage` without what is nothing."""
    is_final: bool = False
    """Gym says that it is never to be tried again (`_ng_failure_terminal`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", readable(self.message[:MAX_FAILURE_MESSAGE]))


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
    own, whatever the answer claims, numbers that JSON has no word for are null (as orjson writes them), and what the
    SDK would not take for a model call is none. Raises `RecursionError` for one that is nested too deeply."""
    stamped = {
        **strict_json(result),
        NG_TASK_INDEX: rollout.key.task,
        NG_ROLLOUT_INDEX: rollout.key.rollout,
        AGENT_REF: rollout.agent_ref,
        MODEL_USAGE: dict(model_usage),
    }
    attempt = stamped.get(NG_ATTEMPT_INDEX, 0)
    if isinstance(attempt, bool) or not isinstance(attempt, int) or not 0 <= attempt <= MAX_ATTEMPTS:
        del stamped[NG_ATTEMPT_INDEX]
    calls = stamped.pop(MODEL_CALLS, None)
    if isinstance(calls, list):
        stamped[MODEL_CALLS] = [call for call in calls if isinstance(call, Mapping)]
    return stamped


def judge(result: Mapping[str, Any], reward_key: str) -> float | Failure:
    """The reward of a result, read as the SDK reads it, or why there is none.

    The SDK takes a reward by `float()`: `"0.5"` is 0.5 and `true` is 1. NaN, infinities, null, a missing
    key and text are not rewards, nor are numbers whose squares are no floats, at which scoring would end. Nor is the
    score of an agent that never called its model. A row that Gym itself marks as failed has none either
    (`_ng_failure_class`, `_ng_no_persist` in `nemo_gym/rollout_collection.py`).
    """
    if result.get("_ng_no_persist"):
        return Failure(FailureClass.KILLED, _said(result, "Gym's agent was stopped before it finished"))
    if result.get("_ng_failure_class") is not None:
        name = str(result["_ng_failure_class"])
        return Failure(
            _CLASSES_OF_GYM.get(name, FailureClass.ENVIRONMENT),
            _said(result, f"Gym reports {name}"),
            is_final=result.get("_ng_failure_terminal") is True,
        )
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
    if abs(reward) > MAX_NUMBER:
        words = f"the verifier returned {reward_key} {reward:g}: no reward may be further from 0 than {MAX_NUMBER:g}"
        return Failure(FailureClass.ENVIRONMENT, words)
    if _agent_never_ran(result):
        return Failure(FailureClass.ENVIRONMENT, "the agent produced no output and never called its model")
    return reward


def innermost(text: str) -> str:
    """The cause in an error text of Gym, whose servers wrap each other's answers: what the innermost
    one said, without the quotes and escapes that each layer added."""
    cause = text.rpartition(_WRAPPED)[2][: 4 * MAX_FAILURE_MESSAGE]
    cause = re.sub(r"\\+(['\"])", r"\1", re.sub(r"\\+n", "\n", cause))
    _, refused, misfits = cause.partition(_REFUSED)
    found = [f"{_dotted(place)}: {why}" for place, why in _MISFIT.findall(misfits)] if refused else []
    if found:
        return f"the environment refused the row: {'; '.join(dict.fromkeys(found[:_MISFITS_SHOWN]))}"
    said = _BYTES.fullmatch(cause)
    cause = said[3] if said else cause
    error = _ERROR.fullmatch(cause)
    return f"{error[1]}: {error[3]}" if error else cause


def _dotted(place: str) -> str:
    """`"body","options",0` as `body.options.0`."""
    return ".".join(part.strip('" ') for part in place.split(","))


def _said(result: Mapping[str, Any], label: str) -> str:
    words = next((result[key] for key in _WORDS_OF_GYM if result.get(key)), None)
    return f"{label}: {words}" if words else label
