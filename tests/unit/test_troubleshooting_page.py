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
    body = stuck.job_that_says(state.name, stuck.example(state))
    told = "\n".join(advice(Job(body), Job(body).cause))
    assert state.advised in told and bool(told) == bool(state.advised), told


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


@pytest.mark.parametrize("state", stuck.STATES, ids=lambda state: state.name)
def test_what_a_row_says_is_held_against_what_a_test_of_it_sees(state: stuck.State):
    files = {test.partition("::")[0] for test in state.tests}
    assert state.name in set().union(*map(_states_of, files)), f"nothing in {files} compares with {state.name!r}"


def _states_of(file: str) -> set[str]:
    """Rows that a test file names; what `tests/e2e/test_x.py` looks at may have been seen by `tests/e2e/x.py`."""
    path = ROOT / file
    sources = [path, path.with_name(path.name.removeprefix("test_"))]
    nodes = [node for source in sources if source.exists() for node in ast.walk(ast.parse(source.read_text()))]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_what_is_seen_is_compared_with_the_row():
    waits = condition(
        "Running", False, "ImagePullFailed", "pod 'a' cannot pull the image of 'b': no; it waits until x at"
    )
    assert not stuck.is_seen("The image is missing, or may not be pulled", job(phase="Starting", conditions=[waits]))
    waits["message"] += " most (timeouts)"
    stuck.assert_seen("The image is missing, or may not be pulled", job(phase="Starting", conditions=[waits]))
    with pytest.raises(AssertionError, match="is expected"):
        stuck.assert_seen("A node is gone", job(phase="Starting", conditions=[waits]))
