"""docs/troubleshooting.md against the table that tests hold jobs against: every row is on it, says what explain says,
and names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nhx_gym_operator.api import conditions
from nhx_gym_operator.cli.advice import advice
from nhx_gym_operator.client.jobs import Job
from support import stuck
from support.cli_values import condition, job

ROOT = Path(__file__).resolve().parents[2]
WAYS = (
    "image is missing", "slow to pull", "command", "Secret", "ConfigMap", "FileSet", "claim is missing",
    "deleted in the", "never binds", "quota", "LimitRange", "No node", "not ready", "node is gone", "drained",
    "evicted", "evaluator runs", "gym host runs", "child of", "init container", "never get ready", "one port",
    "hangs", "429", "500", "garbage", "half a stream", "keeps its sockets", "webhook", "clock", "API server",
)  # fmt: skip
"""The ways to get stuck that are to have a name."""


def test_the_page_is_what_the_table_says():
    assert (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8") == stuck.render(), "run: make crds"


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_get_stuck_has_a_row(way: str):
    assert [each.name for each in stuck.STATES if way in each.name]


@pytest.mark.parametrize("state", stuck.STATES, ids=lambda state: state.name)
def test_a_row_says_what_explain_says(state: stuck.State):
    kind, holds = _where(state)
    conditions_ = [condition(kind, holds, state.reason, stuck.example(state))]
    body = job(phase=state.phase, conditions=conditions_)
    told = "\n".join(advice(Job(body), Job(body).cause))
    assert state.advised in told and bool(told) == bool(state.advised), told


def _where(state: stuck.State) -> tuple[str, bool]:
    if state.phase == "Failed":
        return "Failed", True
    return "Running", state.phase == "Running"


@pytest.mark.parametrize("state", stuck.STATES, ids=lambda state: state.name)
def test_a_row_speaks_of_reasons_that_there_are(state: stuck.State):
    known = {
        value
        for name, enum in vars(conditions).items()
        if name.endswith("Reason") and isinstance(enum, type)
        for value in enum
    }
    assert {state.reason, *state.end} <= known


@pytest.mark.parametrize("state", stuck.STATES, ids=lambda state: state.name)
def test_a_row_is_provoked_by_tests_that_exist(state: stuck.State):
    for test in state.tests:
        file, _, name = test.partition("::")
        names = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}
        assert name in names, test
    assert state.tests


def test_what_is_seen_is_compared_with_the_row():
    waits = condition(
        "Running", False, "ImagePullFailed", "pod 'a' cannot pull the image of 'b': no; it waits until x at"
    )
    assert not stuck.is_seen("The image is missing, or may not be pulled", job(phase="Starting", conditions=[waits]))
    waits["message"] += " most (timeouts)"
    stuck.assert_seen("The image is missing, or may not be pulled", job(phase="Starting", conditions=[waits]))
    with pytest.raises(AssertionError, match="is expected"):
        stuck.assert_seen("A node is gone", job(phase="Starting", conditions=[waits]))
