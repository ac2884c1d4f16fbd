"""What follows from an attempt that is lost."""

import pytest

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.api.wire.endpoints import Stage
from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.clock import format_time
from nhx_gym_operator.controller.policies import retry
from support.controller_values import (
    NOW,
    accepted_status,
    after,
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


def lost_before(number, **spec):
    """The verdict on one more lost attempt."""
    owner = job(status=accepted_status(lostAttempts=number) if number else accepted_status(), **spec)
    return retry.judge(observe(owner, pods=()), Attempt(9), LOSS, NOW)


@pytest.mark.parametrize(
    ("before", "pause"), [(0, 10), (1, 20), (2, 40), (3, 80), (4, 160), (5, 320), (6, 360), (50, 360)]
)
def test_the_pause_doubles_with_each_lost_attempt_up_to_six_minutes(before, pause):
    verdict = lost_before(before, backoffLimit=100)
    assert (verdict.lost, verdict.reason, verdict.again_at) == (before + 1, "EvaluatorLost", after(pause))
    assert verdict.message == f"{LOSS}; attempt 10 follows at {format_time(after(pause))}"


@pytest.mark.parametrize(("before", "spec"), [(6, {}), (0, {"backoffLimit": 0}), (2, {"backoffLimit": 2})])
def test_more_lost_attempts_than_the_limit_end_the_job(before, spec):
    assert before == 0 or lost_before(before - 1, **spec).again_at is not None
    verdict = lost_before(before, **spec)
    assert (verdict.again_at, verdict.reason) == (None, "BackoffLimitExceeded")
    assert f"{before + 1} attempts were lost, and spec.backoffLimit is {spec.get('backoffLimit', 6)}" in verdict.message


def test_the_default_limit_is_that_of_a_batch_job():
    assert job().spec.backoff_limit == 6


def judged(pod=None, status=None, **changes):
    owner = job(status=accepted_status(**(status or {})), results={"emptyDir": {}})
    return retry.judge(observe(owner, pods=(), **changes), Attempt(1, pod), LOSS, NOW)


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
    assert (verdict.again_at, verdict.reason) == (None, "ResultsLost")
    assert "spec.results.persistentVolumeClaim" in verdict.message


BUSY = outcome(
    "Failed",
    reason="EvaluatorLost",
    message="the node was too busy for Gym to start: Ray",
    progress=progress(Stage.STARTING, hosts_ready=0),
)
TOO_BUSY = evaluator(
    workload(), states={"agent-evaluate": ended(1, encode_outcome(BUSY).decode(), reason="Error")}, phase="Failed"
)


@pytest.mark.parametrize(
    "verdict",
    [
        judged(ghosts=(evaluator(workload()),)),
        judged(ghosts=(STARTED,), progress=progress(Stage.STARTING, hosts_ready=0)),
        judged(TOO_BUSY),
    ],
    ids=["never started", "still starting", "given up by its evaluator while it started"],
)
def test_an_empty_dir_into_which_nothing_was_collected_is_no_loss(verdict):
    assert verdict.again_at is not None


POLICY = {
    "rules": [
        {"action": "FailJob", "onRollout": {"classes": ["model"]}},
        {"action": "FailJob", "onLostAttempt": {"causes": ["OOMKilled"]}},
        {"action": "Ignore", "onLostAttempt": {"causes": ["Evicted", "OOMKilled"]}},
        {"action": "Count", "onLostAttempt": {"causes": ["Unknown"]}},
    ]
}
OUT_OF_ROOM = evaluator(workload(), phase="Failed", reason="Evicted")


def under_policy(pod, lost=0, ignored=0, **spec):
    status = {"lostAttempts": lost or None, "ignoredAttempts": ignored or None}
    known = accepted_status(**{name: number for name, number in status.items() if number})
    owner = job(status=known, failurePolicy=POLICY, **spec)
    return retry.judge(observe(owner, pods=()), Attempt(1, pod), LOSS, NOW)


def test_a_cause_that_a_rule_makes_final_ends_the_job_and_names_the_rule():
    verdict = under_policy(KILLED)
    assert (verdict.again_at, verdict.reason, verdict.lost, verdict.ignored) == (None, "FailurePolicy", 1, 0)
    assert verdict.message == (
        f"{LOSS}; spec.failurePolicy.rules[1] ends the job at an attempt that was lost by OOMKilled"
    )


@pytest.mark.parametrize(("lost", "ignored", "pause"), [(0, 0, 10), (0, 2, 40), (1, 1, 40), (0, 50, 360)])
def test_a_cause_that_a_rule_ignores_does_not_count_and_its_pauses_grow_all_the_same(lost, ignored, pause):
    verdict = under_policy(OUT_OF_ROOM, lost, ignored, backoffLimit=lost)
    assert (verdict.again_at, verdict.lost, verdict.ignored) == (after(pause), lost, ignored + 1)
    assert "not counted against spec.backoffLimit, since spec.failurePolicy.rules[2] ignores Evicted" in verdict.message


@pytest.mark.parametrize("pod", [None, evaluator(workload(), phase="Failed")], ids=["Count", "no rule"])
def test_another_cause_counts_as_without_a_policy(pod):
    assert under_policy(pod, backoffLimit=1).again_at == after(10)
    verdict = under_policy(pod, lost=1, ignored=5, backoffLimit=1)
    assert (verdict.reason, verdict.lost, verdict.ignored) == ("BackoffLimitExceeded", 2, 5)


def test_records_that_are_lost_are_said_before_any_rule_is_asked():
    assert under_policy(KILLED, results={"emptyDir": {}}).reason == "ResultsLost"
