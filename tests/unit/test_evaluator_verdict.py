from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask
from sandboxed_gym.host.models import render_host_error

from nhx_gym_operator.api.wire.plans import EvaluatorPlan
from nhx_gym_operator.api.wire.reports import FailureClass
from nhx_gym_operator.cli import conditions_page
from nhx_gym_operator.evaluator.rollouts import Failure, innermost, judge, rollouts_of
from nhx_gym_operator.evaluator.verdict import describe_failures, verdict
from unit.evaluator_fakes import make_plan

MODEL = Failure(FailureClass.MODEL, "HTTP 400: no")
KILLED = Failure(FailureClass.KILLED, "gone")


def plan(min_coverage: float) -> EvaluatorPlan:
    return make_plan(Path("/x"), min_coverage=min_coverage)


@pytest.mark.parametrize(
    ("done", "min_coverage", "state", "reason", "degraded"),
    [
        (10, 1.0, "Complete", "AllRolloutsRecorded", False),
        (10, 0.0, "Complete", "AllRolloutsRecorded", False),
        (7, 0.7, "Complete", "MinCoverageReached", True),
        (7, 0.71, "Failed", "CoverageTooLow", False),
        (9, 1.0, "Failed", "CoverageTooLow", False),
        (0, 0.0, "Failed", "CoverageTooLow", False),
    ],
)
def test_min_coverage_decides(done: int, min_coverage: float, state: str, reason: str, degraded: bool) -> None:
    judged = verdict(plan(min_coverage), done=done, total=10, failures=[MODEL] * (10 - done))
    assert (judged.state, judged.reason, bool(judged.degraded)) == (state, reason, degraded)


def test_the_most_frequent_class_names_the_failure() -> None:
    judged = verdict(plan(1.0), done=7, total=10, failures=[MODEL, KILLED, MODEL])
    assert judged.failure_class is FailureClass.MODEL
    assert describe_failures([MODEL, KILLED, MODEL]) == "2 model (“HTTP 400: no”), 1 killed (“gone”)"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"reward": 0}, 0.0),
        ({"reward": "0.5"}, 0.5),
        ({"reward": True}, 1.0),
        ({"reward": None}, FailureClass.ENVIRONMENT),
        ({"reward": float("nan")}, FailureClass.ENVIRONMENT),
        ({"reward": "-inf"}, FailureClass.ENVIRONMENT),
        ({"reward": 10**400}, FailureClass.ENVIRONMENT),
        ({}, FailureClass.ENVIRONMENT),
        ({"reward": 0.0, "_ng_failure_class": "skipped"}, FailureClass.ENVIRONMENT),
        ({"reward": 0.0, "_ng_failure_class": ["judge_failed"]}, FailureClass.ENVIRONMENT),
        ({"reward": 0.0, "_ng_failure_class": "kill_shaped"}, FailureClass.KILLED),
        ({"reward": 0.0, "_ng_failure_class": "timeout_exceeded"}, FailureClass.TIMEOUT),
        ({"reward": 0.0, "_ng_failure_class": "transient"}, FailureClass.TRANSIENT),
        ({"reward": 0.0, "_ng_failure_class": "legitimate"}, FailureClass.LEGITIMATE),
        ({"reward": 0.0, "_ng_no_persist": True}, FailureClass.KILLED),
        ({"reward": 0.0, "response": {"output": [], "usage": {"input_tokens": 0}}}, FailureClass.ENVIRONMENT),
        ({"reward": 0.0, "response": {"output": [], "usage": {"input_tokens": 9}}}, 0.0),
    ],
)
def test_a_reward_is_what_the_sdk_takes_for_one(result: dict[str, object], expected: object) -> None:
    judged = judge(result, "reward")
    assert (judged.failure_class if isinstance(judged, Failure) else judged) == expected


def test_what_gym_calls_terminal_is_final_and_its_words_are_kept() -> None:
    row = {"reward": 0.0, "_ng_failure_class": "timeout_exceeded", "error_message": "after 600 s"}
    judged, final = judge(row, "reward"), judge(row | {"_ng_failure_terminal": True}, "reward")
    assert isinstance(judged, Failure) and isinstance(final, Failure)
    assert (judged.is_final, final.is_final) == (False, True)
    assert final.message == "Gym reports timeout_exceeded: after 600 s"


def test_the_page_of_results_has_each_class_with_when_it_is_given() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/results.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \| (.+) \|$", page.partition("| class | when |")[2].partition("\n\n")[0], re.M)
    assert dict(table) == conditions_page.meanings(FailureClass)
    assert [name for name, _ in table] == [failure_class.value for failure_class in FailureClass]


def test_of_errors_that_gyms_servers_wrapped_the_innermost_is_shown_readably() -> None:
    cause = "1 validation error for X\\\\n  Field \\\\'created\\\\' required"
    wrapped = (
        f"500: b'\"Hit an exception in A calling an inner server: b\\'Hit one in B calling an inner server: {cause}"
    )
    assert innermost(wrapped) == "1 validation error for X\n  Field 'created' required"
    assert innermost("KeyError: 'x'") == "KeyError: 'x'"


def wrapped(answer: bytes, layers: int) -> str:
    """What the evaluator is told of a Gym server's answer that so many others passed on, as
    `exception_handling_middleware` of nemo_gym 0.5.0 and the launcher do it."""
    for server in ("resources", "agent", "outer")[:layers]:
        text = f"Hit an exception in {server}_123 calling an inner server: {answer!r}"
        answer = json.dumps(text, ensure_ascii=False).encode()
    message = f"ClientResponseError: 500, message='Internal Server Error', url='http://x/run'\n{answer.decode()}"
    return f"gym host, HTTP 200: {render_host_error({'code': 'internal', 'message': message})}"


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_row_that_does_not_fit_is_told_by_field_and_not_in_bytes(layers: int, is_cut_off: bool) -> None:
    body = {"question": 'say "it\'s\nso"', "text": "x" * 2000 * is_cut_off}
    misfits = [
        {"type": "missing", "loc": ["body", "expected_answer"], "msg": "Field required", "input": body},
        {"type": "list_type", "loc": ["body", "options", 0], "msg": "Input should be a valid list", "input": body},
    ]
    answer = json.dumps({"detail": misfits}, separators=(",", ":")).encode()
    words = "the environment refused the row: body.expected_answer: Field required"
    more = "" if is_cut_off else "; body.options.0: Input should be a valid list"
    assert innermost(wrapped(answer, layers)) == words + more


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (AttributeError("'V' object has no attribute 'answr'"), "AttributeError: 'V' object has no attribute 'answr'"),
        (KeyError("x"), "KeyError: x"),
        (ValueError('no "x" here'), 'ValueError: no "x" here'),
        (OSError(2, "none"), "FileNotFoundError(2, 'none')"),
        (ValueError("a", "b"), "ValueError('a', 'b')"),
    ],
)
def test_an_error_of_the_environments_code_is_told_without_its_layers_of_quotes(
    error: Exception, shown: str, layers: int
) -> None:
    assert innermost(wrapped(json.dumps(repr(error)).encode(), layers)) == shown


def test_repeats_are_numbered_and_a_row_keeps_its_own_agent() -> None:
    extras = {"a": {"agent_ref": None}, "b": {"agent_ref": {"name": "own"}}}
    tasks = [
        AgentEvalTask(id=name, intent="", inputs={"gym_row": {}}, metadata={"gym_row_extras": extra})
        for name, extra in extras.items()
    ]
    rollouts = rollouts_of(tasks, num_repeats=2, agent="default")
    assert [(r.key, r.task_id, r.agent) for r in rollouts] == [
        ((0, 0), "a", "default"),
        ((0, 1), "a", "default"),
        ((1, 0), "b", "own"),
        ((1, 1), "b", "own"),
    ]
    assert rollouts[0].row["agent_ref"] == {"name": "default"}
    assert rollouts[3].row["_ng_rollout_index"] == 1
