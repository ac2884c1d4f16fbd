"""An evaluator's container that is started again in its pod: how often that is borne, and what follows then."""

from dataclasses import replace

import pytest

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.making_pods import workload_of
from nhx_gym_operator.controller.policies import loss_cause, lost_attempt, recorded, restarts
from support.controller_values import (
    accepted_status,
    after,
    condition_of,
    ended,
    host,
    installation,
    job,
    observe,
    outcome,
    progress,
    running,
    started_again,
    waiting,
    workload,
)

AGAIN = workload(restarts=True)
EARLY = encode_outcome(outcome("Running", done=3)).decode()
NOTHING_YET = encode_outcome(outcome("Running", done=0)).decode()
BACK_OFF = waiting("CrashLoopBackOff")
KILLED = ended(137, EARLY, reason="OOMKilled")
SOON = after(-30)
"""Half a minute after the ends of `ended()`."""


def loss(pod, now=SOON, **changes):
    return lost_attempt.find(observe(job(**changes), pods=(pod,)), Attempt(1, pod), now)


@pytest.mark.parametrize(
    "pod",
    [
        started_again(AGAIN, KILLED, 0),
        started_again(AGAIN, BACK_OFF, 0),
        started_again(AGAIN, running(), 2),
        started_again(AGAIN, BACK_OFF, 1),
    ],
    ids=["just killed", "about to start", "runs the third time", "waits for its third time"],
)
def test_an_evaluator_that_is_started_again_in_its_place_is_no_lost_attempt(pod):
    assert loss(pod) is None


@pytest.mark.parametrize(
    "pod",
    [started_again(AGAIN, KILLED, 2), started_again(AGAIN, BACK_OFF, 2), started_again(AGAIN, running(), 3)],
    ids=["killed", "waiting", "started a third time all the same"],
)
def test_an_evaluator_that_was_killed_a_third_time_is_lost_with_the_attempt_by_that_end(pod):
    words = "OOMKilled, exit code 137; it ended 3 times in its place"
    assert loss(pod) == f"pod 'mcqa-evaluator-1' ended without an outcome: {words}"
    assert loss_cause.find(observe(pods=(pod,)), Attempt(1, pod)) == "OOMKilled"


@pytest.mark.parametrize(("limit", "borne"), [(0, 0), (1, 1), (2, 2), (6, 2)])
def test_never_more_ends_are_borne_than_the_job_bears_lost_attempts(limit, borne):
    ends = [loss(started_again(AGAIN, KILLED, before), backoffLimit=limit) for before in range(4)]
    assert [end is None for end in ends] == [number < borne for number in range(4)]


def test_one_that_nobody_starts_again_is_given_up_after_a_minute():
    pod = started_again(AGAIN, KILLED, 0)
    observation = observe(pods=(pod,))
    assert lost_attempt.looks_again_after(observation, Attempt(1, pod), SOON) == [30]
    assert loss(pod, after(-0.5)) is None
    assert loss(pod, after(0)).endswith("OOMKilled, exit code 137; it was not started again within 60 s")
    assert loss_cause.find(observation, Attempt(1, pod)) == "OOMKilled"


@pytest.mark.parametrize(
    "pod",
    [
        started_again(workload(), KILLED, 0),
        started_again(AGAIN, ended(1, EARLY, reason="Error"), 0),
        started_again(AGAIN, ended(128, "exec: not found", reason="StartError"), 0),
        started_again(AGAIN, KILLED, 0, phase="Failed"),
    ],
    ids=["on an older cluster", "an end of its own", "a command that cannot be run", "a kubelet that does not"],
)
def test_an_evaluator_that_nobody_starts_again_is_lost(pod):
    assert loss(pod)


def on_loss(action, *causes):
    return {"rules": [{"action": action, "onLostAttempt": {"causes": list(causes)}}]}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"backoffLimit": 0}, False),
        ({"failurePolicy": on_loss("FailJob", "OOMKilled")}, False),
        ({"failurePolicy": on_loss("FailJob", "Killed")}, False),
        ({"failurePolicy": on_loss("FailJob", "Evicted")}, True),
        ({"failurePolicy": on_loss("Ignore", "OOMKilled", "Killed")}, True),
    ],
)
def test_a_job_that_is_to_end_with_its_first_loss_has_nothing_started_again(changes, wanted):
    owner = job(**changes)
    assert restarts.are_wanted(owner.spec) is wanted
    for able in (True, False):
        observation = observe(owner, installation=(able and can_restart()) or installation())
        assert workload_of(observation, accepted_status(), 1).restarts is (able and wanted)


def can_restart():

    return replace(installation(), restarts=True)


def test_what_an_evaluator_did_before_it_was_started_again_may_have_been_paid_for():
    pod = started_again(AGAIN, ended(137, NOTHING_YET, reason="OOMKilled"), 2)
    seen = observe(job(results={"emptyDir": {}}), pods=(pod,), progress=progress(done=0, total=0))
    assert recorded.may_have_collected(seen, Attempt(1, pod))


def test_an_answer_counts_only_if_the_present_process_gave_it():
    pod = started_again(AGAIN, running(), 1)
    uid, said = pod["metadata"]["uid"], progress()
    for life, expected in ((f"{uid}/0", None), (f"{uid}/1", said), ("", said)):
        assert restarts.answer(observe(pods=(pod,), progress=said, progress_life=life), Attempt(1, pod)) is expected


def test_an_evaluator_that_is_started_again_is_said_before_a_host_that_does_not_run_yet():
    owner = job(status=accepted_status())
    decision = decide(observe(owner, pods=(started_again(AGAIN, KILLED, 0), host(workload(owner)))), SOON)
    assert condition_of(decision, "Running")["reason"] == "EvaluatorRestarting"
    assert decision.requeue_after == 30
