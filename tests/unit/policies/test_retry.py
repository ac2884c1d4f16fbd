"""When an attempt is lost, and when another one follows."""

import pytest

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.api.wire import Stage
from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.policies import retry
from support.controller_values import (
    accepted_status,
    condition,
    ended,
    evaluator,
    job,
    observe,
    outcome,
    progress,
    running,
    workload,
)

EARLY = encode_outcome(outcome("Running", done=3)).decode()
LOSS = "the evaluator pod of attempt 1 is gone"
RAN = [condition("Accepted", True, "Accepted"), condition("Running", True, "Collecting")]
STARTED = evaluator(workload(), states={"agent-evaluate": running()})
KILLED = evaluator(workload(), states={"agent-evaluate": ended(137, EARLY, reason="OOMKilled")}, phase="Failed")


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
    assert words in retry.find_loss(Attempt(1, pod))


@pytest.mark.parametrize(
    "pod",
    [evaluator(workload()), STARTED, evaluator(workload(), phase="Running", deleted=True)],
    ids=["pending", "running", "in its grace"],
)
def test_an_attempt_that_may_still_end_by_itself_is_not_lost(pod):
    assert retry.find_loss(Attempt(1, pod)) is None


@pytest.mark.parametrize(
    ("number", "final", "words"),
    [(1, False, "attempt 2 follows"), (6, False, "attempt 7 follows"), (7, True, "7 attempts")],
)
def test_the_seventh_lost_attempt_is_the_last(number, final, words):
    verdict = retry.judge(observe(pods=()), Attempt(number), LOSS)
    assert (verdict.final, verdict.reason) == (final, "EvaluatorLost")
    assert verdict.message.startswith(LOSS) and words in verdict.message


def judged(pod=None, status=None, **changes):
    owner = job(status=accepted_status(**(status or {})), results={"emptyDir": {}})
    return retry.judge(observe(owner, pods=(), **changes), Attempt(1, pod), LOSS)


@pytest.mark.parametrize(
    "verdict",
    [
        judged(status={"conditions": RAN}, ghosts=(evaluator(workload()),)),
        judged(),
        judged(ghosts=(STARTED,)),
        judged(ghosts=(STARTED,), progress=progress(done=1)),
        judged(KILLED),
    ],
    ids=["was running", "nobody was looking", "last seen running", "had rollouts", "says itself"],
)
def test_results_in_an_empty_dir_are_lost_with_it_and_nothing_is_collected_twice(verdict):
    assert (verdict.final, verdict.reason) == (True, "ResultsLost")
    assert "spec.results.persistentVolumeClaim" in verdict.message


@pytest.mark.parametrize(
    "verdict",
    [
        judged(ghosts=(evaluator(workload()),)),
        judged(ghosts=(STARTED,), progress=progress(Stage.STARTING, hosts_ready=0)),
    ],
    ids=["never started", "still starting"],
)
def test_an_empty_dir_into_which_nothing_was_collected_is_no_loss(verdict):
    assert not verdict.final
