"""Bounds of waits: how much is left of them, and the words with which they end."""

import pytest

from nhx_gym_operator.api.waits import without_until
from nhx_gym_operator.controller.policies import deadlines
from nhx_gym_operator.controller.settings import Timeouts
from support.controller_values import CREATED, NOW, after, host, workload

TIMEOUTS = Timeouts(pod_start_seconds=900, wait_for_inputs_seconds=300, pod_admission_seconds=3600)


@pytest.mark.parametrize(
    ("deadline", "words"),
    [
        (deadlines.of_inputs(TIMEOUTS), "300 s (the operator's setting timeouts.waitForInputsSeconds)"),
        (deadlines.of_admission(TIMEOUTS), "3600 s (the operator's setting timeouts.podAdmissionSeconds)"),
        (deadlines.of_pods(TIMEOUTS), "900 s (the operator's setting timeouts.podStartSeconds)"),
    ],
    ids=["inputs", "admission", "pods"],
)
def test_an_end_says_what_was_wrong_for_how_long_and_which_setting_bounds_it(deadline, words):
    assert deadline.still_so("no ConfigMap 'rows'") == f"no ConfigMap 'rows'; still so after {words}"


def test_a_bound_runs_from_when_the_wait_began():
    bound = deadlines.of_inputs(TIMEOUTS)
    assert bound.seconds_left(after(-100), NOW) == 200
    assert bound.seconds_left(after(-300), NOW) == 0
    assert bound.seconds_left(after(-301), NOW) < 0


def test_the_end_of_a_wait_is_the_same_moment_at_every_look():
    bound = deadlines.of_inputs(TIMEOUTS)
    said = {bound.until(bound.seconds_left(NOW, moment), moment) for moment in map(after, (0, 0.1, 7.7, 299.999))}
    (words,) = said
    assert words.endswith("until 2026-11-29T12:05:00Z at most (the operator's setting timeouts.waitForInputsSeconds)")
    assert without_until(f"no node{words}") == without_until("no node") == "no node"


def test_pods_have_their_grace_before_their_end_is_waited_for():
    told, not_told = host(workload(), deleted=True), host(workload())
    assert told["metadata"]["deletionTimestamp"] == CREATED
    assert deadlines.seconds_left_to_end([told], TIMEOUTS, NOW) == 840
    assert deadlines.seconds_left_to_end([told, not_told], TIMEOUTS, NOW) == 900
