"""Transitions of conditions, told as events."""

import pytest

from nhx_gym_operator.controller import events
from support.controller_values import UID, condition

JOB = {
    "apiVersion": "evals.nhx.io/v1alpha1",
    "kind": "AgentEvalJob",
    "metadata": {"name": "mcqa", "namespace": "team", "uid": UID},
}


def test_a_transition_is_told_once_and_under_one_name():
    old = [condition("Accepted", False, "ConfigMapNotFound")]
    new = [condition("Accepted", True, "Accepted"), condition("Running", False, "PodsCreated")]
    first = events.of_transitions(JOB, old, new)
    assert [(event["reason"], event["type"]) for event in first] == [("Accepted", "Normal"), ("PodsCreated", "Normal")]
    assert events.of_transitions(JOB, old, new) == first
    assert events.of_transitions(JOB, new, new) == []


@pytest.mark.parametrize(
    ("entry", "severity"),
    [
        (condition("Failed", True, "CoverageTooLow"), "Warning"),
        (condition("Degraded", True, "RolloutsMissing"), "Warning"),
        (condition("Accepted", False, "SandboxUnavailable"), "Warning"),
        (condition("Running", False, "PodRefused"), "Warning"),
        (condition("Running", False, "RunEnded"), "Normal"),
        (condition("SandboxReady", False, "GateChecking"), "Normal"),
        (condition("Complete", True, "AllRolloutsRecorded"), "Normal"),
    ],
)
def test_bad_news_is_a_warning(entry, severity):
    (event,) = events.of_transitions(JOB, [], [entry])
    assert event["type"] == severity


def test_an_event_fits_whatever_the_job_is_called_and_the_message_says():
    job = {**JOB, "metadata": {**JOB["metadata"], "name": "n" * 253}}
    (event,) = events.of_transitions(job, [], [condition("Failed", True, "X", message="m" * 5000)])
    assert len(event["metadata"]["name"]) <= 253
    assert len(event["message"]) <= 1024
    job["metadata"]["name"] = f"{'n' * 199}-{'n' * 20}"
    (event,) = events.of_transitions(job, [], [condition("Failed", True, "X")])
    assert "-." not in event["metadata"]["name"]


def test_a_long_message_is_told_by_its_first_line_which_says_what_to_change():
    """As that of an unknown resources server, with a hundred that are known below it. The condition has it whole."""
    first = "spec.target.gym.resourcesServer 'mcqaa' is unknown; did you mean 'mcqa'?"
    long = condition("Failed", True, "X", message=f"{first}\nthose that run are {'a, ' * 200}")
    short = condition("Failed", True, "X", message=f"{first}\nthose that run are mcqa")
    messages = [events.of_transitions(JOB, [], [entry])[0]["message"] for entry in (long, short)]
    assert messages == [f"Failed=True: {first}", f"Failed=True: {first}\nthose that run are mcqa"]
