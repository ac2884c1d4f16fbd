"""The deadlines of a job's own spec: from when they count, what they say, and what ends before them."""

import pytest

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.inputs import Inputs, Missing
from support.controller_values import (
    NOW,
    STARTED_PODS,
    TOLD_TO_END,
    accepted_status,
    after,
    condition,
    condition_of,
    ended,
    evaluator,
    finished_evaluator,
    holds,
    host,
    job,
    kinds,
    new,
    observe,
    outcome,
    progress,
    workload,
)

NO_ROWS = Inputs(missing=Missing("ConfigMapNotFound", "ConfigMap 'rows' does not exist"))


def active(seconds=100, status=None, **changes):
    """Of a job that started a minute before NOW, as `accepted_status` says."""
    owner = job(status=status or accepted_status(), activeDeadlineSeconds=seconds)
    return observe(owner, workload(), **({"pods": STARTED_PODS} | changes))


def starting(seconds=100, status=None, **changes):
    return observe(job(status=status or accepted_status(), startingDeadlineSeconds=seconds), workload(), **changes)


def failure(decision):
    return condition_of(decision, "Failed")


def test_a_job_counts_from_when_it_was_taken_up_and_not_from_each_look():
    waiting = new(job(startingDeadlineSeconds=10), inputs=NO_ROWS)
    first = decide(waiting, NOW).status
    assert first["startTime"] == "2026-11-29T12:00:00Z"
    again = decide(new(job(status=first, startingDeadlineSeconds=10), inputs=NO_ROWS), after(5))
    assert again.status["startTime"] == first["startTime"] and again.requeue_after == pytest.approx(5)


def test_a_job_that_waits_for_a_measurement_is_not_started_anew_with_each_look():
    from nhx_gym_operator.controller.measuring.findings import Standing, State

    standing = Standing(State.NOT_KNOWN, "not measured yet")
    first = decide(new(standing=standing), NOW).status
    assert decide(new(job(status=first), standing=standing), after(5)).status["startTime"] == first["startTime"]


def test_at_its_deadline_the_pods_of_a_job_are_told_to_end():
    assert decide(active(), after(39)).requeue_after == pytest.approx(1)
    decision = decide(active(), after(40))
    assert kinds(decision) == ["DeletePod mcqa-evaluator-1", "DeletePod mcqa-host-0-1"]
    assert condition_of(decision, "Running")["reason"] == "DeadlineExceeded" and not holds(decision, "Failed")


def test_then_the_job_fails_and_shows_what_was_recorded():
    last_word = evaluator(
        workload(),
        states={"agent-evaluate": ended(1, encode_outcome(TOLD_TO_END).decode())},
        phase="Failed",
        deleted=True,
    )
    decision = decide(active(pods=(last_word,)), after(40))
    assert (failure(decision)["reason"], decision.status["phase"]) == ("DeadlineExceeded", "Failed")
    assert failure(decision)["message"] == (
        "ended by spec.activeDeadlineSeconds (100 s) with 10 of 10 rollouts recorded; they stay on the claim"
    )
    assert decision.status["progress"]["done"] == 4


def test_no_attempt_follows_one_that_is_lost_after_the_deadline():
    lost = evaluator(workload(), states={"agent-evaluate": ended(137)}, phase="Failed")
    assert failure(decide(active(pods=(lost,)), after(40)))["reason"] == "DeadlineExceeded"


def test_a_job_that_is_done_is_not_late():
    done = finished_evaluator(workload(), outcome())
    assert decide(active(pods=(done,)), after(4000)).status["phase"] == "Succeeded"


def test_a_deadline_that_is_raised_in_time_lets_the_job_go_on():
    assert kinds(decide(active(seconds=1000), after(40))) == []


def test_without_deadlines_nothing_is_looked_at_for_their_sake():
    assert decide(observe(pods=STARTED_PODS), after(10**6)).requeue_after is None


def test_a_job_that_does_not_get_its_pods_says_for_what_it_waited():
    decision = decide(
        new(job(status={"startTime": "2026-11-29T11:59:00Z"}, startingDeadlineSeconds=60), inputs=NO_ROWS), NOW
    )
    assert failure(decision)["reason"] == "StartingDeadlineExceeded"
    waited = accepted_status(
        conditions=[condition("Accepted", False, "ConfigMapNotFound", message="ConfigMap 'rows' does not exist")]
    )
    decision = decide(new(job(status=waited, startingDeadlineSeconds=60), inputs=NO_ROWS), NOW)
    assert failure(decision)["message"] == (
        "ended by spec.startingDeadlineSeconds (60 s) before a rollout was recorded; "
        "it waited: ConfigMap 'rows' does not exist"
    )


def test_what_a_job_waited_for_is_still_said_when_its_pods_have_gone():
    words = "pod 'mcqa-host-0-1': the scheduler finds no node"
    conditions = [condition("Accepted", True, "Accepted"), condition("Running", False, "Unschedulable", message=words)]
    status = accepted_status(conditions=conditions)
    ending = decide(starting(status=status), after(40))
    assert kinds(ending) == ["DeletePod mcqa-evaluator-1", "DeletePod mcqa-host-0-1"]
    assert condition_of(ending, "Running")["reason"] == "StartingDeadlineExceeded"
    gone = decide(starting(status=ending.status, pods=()), after(42))
    assert failure(gone)["message"].endswith(f"it waited: {words}")


def test_the_deadline_of_the_start_ends_with_the_start_of_all_pods():
    decision = decide(starting(pods=STARTED_PODS), NOW)
    assert decision.status["podsStartTime"] == "2026-11-29T12:00:00Z" and decision.requeue_after is None
    later = decide(starting(status=decision.status, pods=STARTED_PODS, progress=progress()), after(10**6))
    assert not holds(later, "Failed")


def test_pods_of_which_one_has_not_started_have_not():
    half = (STARTED_PODS[0], host(workload()))
    assert "podsStartTime" not in decide(starting(pods=half), NOW).status


def test_an_attempt_that_follows_a_started_one_is_not_held_to_it():
    status = accepted_status(podsStartTime="2026-11-29T11:59:30Z")
    lost = evaluator(workload(), states={"agent-evaluate": ended(137)}, phase="Failed")
    decision = decide(starting(status=status, pods=(lost,), inputs=Inputs()), after(10**6))
    assert not holds(decision, "Failed")
