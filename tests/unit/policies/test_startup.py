"""Waiting for pods to run: for which of them, for how long, and with which end."""

import pytest

from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.decision_draft import DecisionDraft
from nhx_gym_operator.controller.observation import PodEvent
from nhx_gym_operator.controller.policies import startup
from support.controller_values import (
    NOW,
    accepted_status,
    after,
    ended,
    evaluator,
    host,
    installation,
    job,
    observe,
    running,
    waiting,
    workload,
)

STARTED = {"agent-evaluate": running()}
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]
NO_SECRET = 'MountVolume.SetUp failed for volume "model-key-0" : secret "model" not found'


def found(*pods, moment=NOW, events=(), **settings):
    evaluating, *hosts = pods
    observation = observe(pods=pods, pod_events=events, installation=installation(**settings))
    return startup.waiting(observation, Attempt(1, evaluating, tuple(hosts)), moment)


def misses_its_secret(pod):
    return (PodEvent(pod["metadata"]["uid"], "FailedMount", NO_SECRET),)


@pytest.mark.parametrize(
    ("conditions", "events", "limit", "reason", "words"),
    [
        ([], False, 900, "PodStartTimeout", ["pod 'mcqa-evaluator-1' is starting", "timeouts.podStartSeconds"]),
        (UNSCHEDULABLE, False, 900, "PodStartTimeout", ["0/1 nodes", "900 s", "timeouts.podStartSeconds"]),
        ([], True, 300, "InputsTimeout", ["'model'", "300 s", "timeouts.waitForInputsSeconds"]),
    ],
    ids=["no reason known", "no node", "a Secret is missing"],
)
def test_a_wait_ends_at_the_deadline_of_its_cause(conditions, events, limit, reason, words):
    pod = evaluator(workload(), conditions=conditions)
    noticed = misses_its_secret(pod) if events else ()
    # The pod was made a minute before.
    (early,) = found(pod, moment=after(limit - 61), events=noticed)
    assert not early.is_over and early.seconds_left == 1
    (late,) = found(pod, moment=after(limit - 60), events=noticed)
    assert late.is_over and late.end_reason == reason
    assert all(word in late.end_message for word in words), late.end_message


def test_the_deadlines_are_the_administrators():
    (waits,) = found(evaluator(workload()), timeouts={"podStartSeconds": 60})
    assert waits.is_over


@pytest.mark.parametrize(
    "pods",
    [
        (evaluator(workload(), states=STARTED), host(workload(), states={"sandbox-gate": running()})),
        (evaluator(workload(), states=STARTED), host(workload(), states={"gym-host": running()})),
        (evaluator(workload(), states={"agent-evaluate": ended()}, phase="Succeeded"),),
    ],
    ids=["gate at work", "both run", "ended"],
)
def test_a_pod_that_works_or_has_ended_is_never_late(pods):
    assert found(*pods, moment=after(5000)) == []


def test_a_host_that_does_not_start_ends_no_job_of_which_another_one_runs():
    runs, stuck = host(workload(), states={"gym-host": running()}), host(workload(), 1, conditions=UNSCHEDULABLE)
    evaluating = evaluator(workload(), states=STARTED)
    (waits,) = found(evaluating, runs, stuck, moment=after(5000))
    assert waits.reason == "Unschedulable" and not waits.is_over
    (alone,) = found(evaluating, stuck, moment=after(5000))
    assert alone.is_over
    lost = host(workload(), states={"gym-host": ended(137)}, phase="Failed")
    assert any(each.is_over for each in found(evaluating, lost, stuck, moment=after(5000)))


def test_an_evaluator_that_does_not_start_ends_the_job_whatever_hosts_it_has():
    stuck = evaluator(workload(), conditions=UNSCHEDULABLE)
    (waits,) = found(stuck, host(workload(), states={"gym-host": running()}), moment=after(5000))
    assert waits.is_over


def test_pods_have_started_once_the_evaluator_and_a_first_host_run():
    evaluating = evaluator(workload(), states=STARTED)
    runs, stuck = host(workload(), states={"gym-host": running()}), host(workload(), 1)
    assert startup.has_started(Attempt(1, evaluating, (stuck, runs)))
    assert not startup.has_started(Attempt(1, evaluating, (stuck,)))
    assert not startup.has_started(Attempt(1, evaluator(workload()), (runs,)))


def test_a_pod_with_a_known_problem_comes_first():
    waits = found(evaluator(workload()), host(workload(), states={"gym-host": waiting("ErrImagePull", "reg/host")}))
    assert [each.reason for each in waits] == ["ImagePullFailed", "PodsCreated"]


def test_a_problem_stands_on_the_condition_of_its_pod():
    of_host = host(workload(), states={"gym-host": waiting("ImagePullBackOff", "reg/host")})
    draft = DecisionDraft(job(status=accepted_status()), NOW)
    startup.show(draft, found(evaluator(workload(), states=STARTED), of_host))
    assert [draft.condition(kind)["reason"] for kind in ("SandboxReady", "Running")] == ["ImagePullFailed"] * 2
    draft = DecisionDraft(job(status=accepted_status()), NOW)
    startup.show(draft, found(evaluator(workload(), conditions=UNSCHEDULABLE), host(workload())))
    assert draft.condition("SandboxReady")["reason"] == "PodsCreated"
    assert draft.condition("Running")["reason"] == "Unschedulable"
