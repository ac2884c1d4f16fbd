"""`spec.suspend`: what goes, what stays, and what begins anew."""

import pytest

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.client.jobs import Job
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

LAST_WORD = evaluator(
    workload(), states={"agent-evaluate": ended(1, encode_outcome(TOLD_TO_END).decode())}, phase="Failed", deleted=True
)
EMPTY_DIR = {"results": {"emptyDir": {}}}


def seen(status=None, *, suspend=True, pods=(), **changes):
    spec = {name: changes.pop(name) for name in ("results", "activeDeadlineSeconds", "cancel") if name in changes}
    owner = job(status=status if status is not None else accepted_status(), suspend=suspend, **spec)
    return observe(owner, workload(), pods=pods, inputs=Inputs(), **changes)


def suspended(**status):
    """The status of a job whose first attempt was suspended."""
    return decide(seen(accepted_status(**status), pods=(LAST_WORD,)), NOW).status


def test_a_job_that_was_applied_suspended_is_given_nothing():
    decision = decide(new(job(suspend=True)), NOW)
    assert (decision.actions, decision.requeue_after, decision.poll) == ((), None, None)
    assert decision.status["phase"] == "Suspended" and "startTime" not in decision.status
    assert condition_of(decision, "Suspended")["reason"] == "JobSuspended"


def test_what_a_suspended_job_names_need_not_be_there():
    missing = Inputs(missing=Missing("SecretNotFound", "Secret 'model' does not exist"))
    assert decide(new(job(suspend=True), inputs=missing), after(10**6)).status["phase"] == "Suspended"


def test_pods_are_told_to_end_and_the_job_is_not_suspended_before_they_have():
    decision = decide(seen(pods=STARTED_PODS), NOW)
    assert kinds(decision) == ["DeletePod mcqa-evaluator-1", "DeletePod mcqa-host-0-1"]
    entry = condition_of(decision, "Suspended")
    assert (entry["status"], entry["reason"]) == ("False", "Suspending") and decision.requeue_after > 0
    assert decision.status["phase"] != "Suspended"


def test_what_was_recorded_to_the_last_moment_is_shown_and_said_to_be_kept():
    decision = decide(seen(pods=(LAST_WORD,)), NOW)
    assert decision.status["phase"] == "Suspended" and decision.status["progress"]["done"] == 4
    assert condition_of(decision, "Suspended")["message"] == (
        "spec.suspend is true: no pods run; 10 of 10 rollouts are recorded and stay on the claim"
    )


def test_what_is_said_of_pods_goes_with_them():
    status = suspended(podsStartTime="2026-11-29T11:59:00Z", hosts={"ready": 1, "desired": 1, "summary": "1/1"})
    assert [entry["type"] for entry in status["conditions"]] == ["Accepted", "Suspended"]
    assert not status.keys() & {"startTime", "podsStartTime"}
    assert status["hosts"]["summary"] == "0/1"


def test_a_suspended_job_that_is_looked_at_again_asks_for_nothing():
    status = job(status=suspended()).status.to_dict()
    again = decide(seen(status), after(10**6))
    assert (again.actions, again.requeue_after, again.status) == ((), None, status)


def test_the_next_attempt_follows_when_it_is_resumed_and_no_deadline_ran_on():
    decision = decide(seen(suspended(), suspend=False, activeDeadlineSeconds=60), after(10**6))
    assert kinds(decision)[-1] == "CreateTogether mcqa-evaluator-2 mcqa-host-0-2"
    assert decision.status["phase"] != "Suspended" and not holds(decision, "Failed")
    assert condition_of(decision, "Suspended")["reason"] == "JobResumed"
    assert decision.status["startTime"] == "2026-12-11T01:46:40Z" and decision.requeue_after == pytest.approx(60)


def test_a_wait_of_before_is_not_charged_to_a_wait_of_afterwards():
    missing = Inputs(missing=Missing("ConfigMapNotFound", "ConfigMap 'rows' does not exist"))
    first = decide(new(inputs=missing), NOW).status
    held = decide(new(job(status=first, suspend=True)), after(200)).status
    resumed = decide(new(job(status=held), inputs=missing), after(10**6))
    assert condition_of(resumed, "Accepted")["reason"] == "ConfigMapNotFound" and not holds(resumed, "Failed")


def test_an_attempt_that_was_suspended_is_no_lost_one():
    status = suspended(attempt=7, endedAttempt=6)
    decision = decide(seen(status, suspend=False), NOW)
    assert kinds(decision)[-1] == "CreateTogether mcqa-evaluator-8 mcqa-host-0-8"


def test_a_job_that_is_resumed_while_its_pods_end_waits_for_them_and_goes_on():
    ending = decide(seen(pods=STARTED_PODS), NOW).status
    going = evaluator(workload(), phase="Running", deleted=True)
    assert kinds(decide(seen(ending, suspend=False, pods=(going,)), NOW)) == []
    gone = decide(seen(ending, suspend=False), NOW)
    assert kinds(gone)[-1] == "CreateTogether mcqa-evaluator-2 mcqa-host-0-2"


@pytest.mark.parametrize(
    ("pod", "phase"),
    [
        (finished_evaluator(workload(), outcome()), "Succeeded"),
        (finished_evaluator(workload(), outcome("Failed", reason="CoverageTooLow"), code=1), "Failed"),
        (
            evaluator(
                workload(),
                states={"agent-evaluate": ended(0, encode_outcome(outcome()).decode())},
                phase="Succeeded",
                deleted=True,
            ),
            "Succeeded",
        ),
    ],
    ids=["done", "failed by itself", "done in its grace"],
)
def test_an_evaluator_that_ended_by_itself_has_the_say(pod, phase):
    assert decide(seen(pods=(pod,)), NOW).status["phase"] == phase


def test_cancelling_ends_a_suspended_job():
    decision = decide(seen(suspended(), cancel=True), NOW)
    assert decision.status["phase"] == "Cancelled" and decision.actions == ()


def test_a_deadline_ends_no_job_that_is_suspended():
    assert not holds(decide(seen(activeDeadlineSeconds=1, pods=STARTED_PODS), after(10**6)), "Failed")


@pytest.mark.parametrize("known", [None, progress(done=2)], ids=["nothing known yet", "two rollouts"])
def test_records_in_an_empty_dir_are_not_thrown_away(known):
    decision = decide(seen(pods=STARTED_PODS, progress=known, **EMPTY_DIR), NOW)
    entry = condition_of(decision, "Suspended")
    assert (entry["status"], entry["reason"]) == ("False", "ResultsWouldBeLost") and "emptyDir" in entry["message"]
    assert kinds(decision) == [] and decision.status["phase"] == ("Running" if known else "Starting")


def test_a_job_with_an_empty_dir_is_suspended_while_it_is_still_empty():
    decision = decide(seen(pods=(evaluator(workload()), host(workload())), **EMPTY_DIR), NOW)
    assert kinds(decision) == ["DeletePod mcqa-evaluator-1", "DeletePod mcqa-host-0-1"]
    later = decide(seen(decision.status, **EMPTY_DIR), after(5))
    assert later.status["phase"] == "Suspended"


def test_a_node_that_is_away_does_not_hold_up_the_suspension():
    going = evaluator(workload(), phase="Running", deleted=True)
    assert decide(seen(pods=(going,)), after(3600)).status["phase"] == "Suspended"


@pytest.mark.parametrize("final", ["Complete", "Failed"])
def test_a_finished_job_ignores_it(final):
    status = accepted_status(phase="Succeeded", conditions=[condition(final, True, "AllRolloutsRecorded")])
    decision = decide(seen(status), NOW)
    assert (decision.status, decision.actions) == (status, ())


def test_people_are_told_that_it_is_suspended_and_not_what_it_would_wait_for():
    body = {"metadata": {"name": "mcqa"}, "status": suspended()}
    assert Job(body).cause["reason"] == "JobSuspended"
    resumed = decide(seen(suspended(), suspend=False), NOW).status
    assert Job({"metadata": {}, "status": resumed}).cause["reason"] == "Accepted"
