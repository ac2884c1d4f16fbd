"""A job that is stuck says so within a minute, in the words of docs/troubleshooting.md, and comes to an end."""

from __future__ import annotations

import pytest

from e2e.runs import Run
from e2e.stuck import NAMED_SECONDS, Stuck
from support import stuck
from support.job_watch import condition

SCENARIOS = (
    "image_missing",
    "no_node_fits",
    "claim_never_binds",
    "evaluator_out_of_memory",
    "command_missing",
    "foreign_program",
    "too_much_written",
)


@pytest.fixture
def found(request: pytest.FixtureRequest) -> Stuck:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("found", SCENARIOS, indirect=True)
def test_a_state_is_named_within_a_minute_and_ended_by_its_deadline(found: Stuck) -> None:
    stuck.assert_seen(found.state, found.seen)
    assert found.seconds <= NAMED_SECONDS
    stuck.assert_ended(found.state, found.end)


@pytest.mark.parametrize("found", SCENARIOS, indirect=True)
def test_explain_begins_with_the_state_and_says_what_to_do(found: Stuck) -> None:
    lines = " ".join(found.explained.split())
    assert f"{stuck.state(found.state).reason}: " in lines and stuck.state(found.state).advised in lines


def test_an_evaluator_that_runs_out_of_memory_again_and_again_loses_its_attempts(
    evaluator_out_of_memory: Stuck,
) -> None:
    again = "The evaluator runs out of memory again and again"
    lost = [state for state in evaluator_out_of_memory.states if stuck.is_seen(again, state)]
    assert lost and lost[0]["status"]["lostAttempts"] == 1
    assert evaluator_out_of_memory.end["status"]["lostAttempts"] == 2
    assert "it ended 2 times in its place" in condition(evaluator_out_of_memory.end, "Failed")["message"]


def test_a_hung_model_is_named_while_the_job_runs(hung_model: dict[str, Stuck]) -> None:
    stuck.assert_seen("The model hangs", hung_model["model"].seen)
    assert hung_model["model"].seconds <= NAMED_SECONDS


def test_a_frozen_host_is_named_while_the_job_runs(hung_model: dict[str, Stuck]) -> None:
    stuck.assert_seen("A gym host answers no more and keeps its sockets", hung_model["host"].seen)
    assert hung_model["host"].seconds <= NAMED_SECONDS


def test_two_servers_that_want_one_port_are_named_before_there_are_pods(port_clash: Run) -> None:
    stuck.assert_seen("Two servers want one port", port_clash.job)
    stuck.assert_ended("Two servers want one port", port_clash.job)
    assert "podsStartTime" not in port_clash.status
