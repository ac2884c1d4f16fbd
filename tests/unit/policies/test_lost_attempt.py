"""Whether an attempt is lost, and how."""

import pytest

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.policies import lost_attempt
from support.controller_values import NOW, after, ended, evaluator, observe, outcome, running, workload

EARLY = encode_outcome(outcome("Running", done=3)).decode()
STARTED = evaluator(workload(), states={"agent-evaluate": running()})
KILLED = evaluator(workload(), states={"agent-evaluate": ended(137, EARLY, reason="OOMKilled")}, phase="Failed")
GIVEN_UP = outcome("Failed", reason="EvaluatorLost", message="the node was too busy for Gym to start: Ray")


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (None, "is gone"),
        (KILLED, "OOMKilled, exit code 137"),
        (
            evaluator(workload(), phase="Failed", reason="Evicted", message="The node was low on resource: memory"),
            "Evicted: The node was low on resource: memory",
        ),
        (evaluator(workload(), phase="Failed"), "no reason given"),
    ],
    ids=["deleted", "killed", "evicted", "nothing said"],
)
def test_a_loss_is_told_in_the_kubelets_words(pod, words):
    assert words in lost_attempt.find(observe(), Attempt(1, pod), NOW)


def test_an_attempt_that_its_own_evaluator_gave_up_is_lost_for_the_reason_that_it_gives():
    end = ended(1, encode_outcome(GIVEN_UP).decode(), reason="Error")
    pod = evaluator(workload(), states={"agent-evaluate": end}, phase="Failed")
    loss = lost_attempt.find(observe(), Attempt(1, pod), NOW)
    assert loss.endswith("ended without an outcome: the node was too busy for Gym to start: Ray")


EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API"}


@pytest.mark.parametrize("phase", ["Failed", "Running"], ids=["ended", "gone"])
def test_a_pod_that_the_cluster_took_away_is_lost_for_the_clusters_reason(phase):
    taken = evaluator(workload(), phase=phase, conditions=[EVICTED])
    there, ghosts = (taken, ()) if phase == "Failed" else (None, (taken,))
    assert "EvictionByEvictionAPI: Eviction API" in lost_attempt.find(observe(ghosts=ghosts), Attempt(1, there), NOW)


def test_a_pod_that_was_told_to_end_and_is_not_reported_as_ended_is_lost_half_a_minute_after_its_grace():
    told = evaluator(workload(), states={"agent-evaluate": running()}, phase="Running", deleted=True)
    told["spec"]["nodeName"] = "n1"
    # Its grace was over a minute before.
    assert lost_attempt.find(observe(), Attempt(1, told), after(-31)) is None
    assert lost_attempt.looks_again_after(observe(), Attempt(1, told), after(-31)) == [1]
    assert "node 'n1' does not say that it has ended" in lost_attempt.find(observe(), Attempt(1, told), after(-30))


@pytest.mark.parametrize(
    "pod",
    [evaluator(workload()), STARTED, evaluator(workload(), phase="Running", deleted=True)],
    ids=["pending", "running", "in its grace"],
)
def test_an_attempt_that_may_still_end_by_itself_is_not_lost(pod):
    assert lost_attempt.find(observe(), Attempt(1, pod), after(-50)) is None
