"""`spec.cancel`: what becomes of a job, for every state that it can find it in."""

import pytest

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.api.wire.endpoints import Stage
from nhx_gym_operator.controller import events
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.inputs import Inputs, Missing
from nhx_gym_operator.controller.policies.phase import phase
from support.controller_values import (
    NOW,
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
    running,
    workload,
)

RUNNING = [condition("Accepted", True, "Accepted"), condition("Running", True, "Collecting")]


def cancelled(status=None, **changes):
    return job(status=status if status is not None else accepted_status(), cancel=True, **changes)


def seen(*pods, owner=None, **changes):
    return observe(owner or cancelled(), workload(), pods=pods, inputs=Inputs(), **changes)


def told_to_end(*, deleted=True, result=TOLD_TO_END):
    state = ended(1, encode_outcome(result).decode())
    return evaluator(workload(), states={"agent-evaluate": state}, phase="Failed", deleted=deleted)


def failure(decision):
    return condition_of(decision, "Failed")


def test_a_job_without_pods_ends_at_once_and_makes_nothing():
    decision = decide(new(cancelled({})), NOW)
    assert decision.status["phase"] == "Cancelled"
    assert (failure(decision)["reason"], failure(decision)["status"]) == ("Cancelled", "True")
    assert failure(decision)["message"] == "cancelled by spec.cancel before a rollout was recorded"
    assert decision.status["completionTime"] == "2026-11-29T12:00:00Z"
    assert kinds(decision) == []


def test_a_job_that_waits_for_its_inputs_ends_at_once():
    missing = Inputs(missing=Missing("SecretNotFound", "Secret 'model' does not exist"))
    decision = decide(new(cancelled({}), inputs=missing), NOW)
    assert decision.status["phase"] == "Cancelled"


def test_pods_are_told_to_end_and_the_job_waits_for_them():
    pods = (evaluator(workload(), states={"agent-evaluate": running()}, phase="Running"), host(workload()))
    decision = decide(seen(*pods, owner=cancelled(accepted_status(conditions=RUNNING))), NOW)
    assert kinds(decision) == ["DeletePod mcqa-evaluator-1", "DeletePod mcqa-host-0-1"]
    assert decision.status["phase"] == "Running" and not holds(decision, "Failed")
    assert condition_of(decision, "Running")["reason"] == "Cancelling"
    assert decision.requeue_after > 0


def test_a_pod_that_is_ending_is_not_told_twice():
    decision = decide(seen(evaluator(workload(), phase="Running", deleted=True)), NOW)
    assert kinds(decision) == [] and not holds(decision, "Failed")


def test_what_the_evaluator_recorded_to_its_last_moment_is_shown_and_said_to_be_kept():
    decision = decide(seen(told_to_end()), NOW)
    assert decision.status["phase"] == "Cancelled"
    assert failure(decision)["message"] == (
        "cancelled by spec.cancel with 10 of 10 rollouts recorded; they stay on the claim"
    )
    assert decision.status["progress"]["done"] == 4
    assert decision.status["results"]["path"] == "attempt-1"


def test_a_pod_that_is_gone_is_read_as_it_was_last_seen():
    decision = decide(seen(ghosts=(told_to_end(),)), NOW)
    assert decision.status["phase"] == "Cancelled"
    assert decision.status["progress"]["done"] == 4


def test_records_on_an_empty_dir_are_said_to_be_gone():
    status = accepted_status(results={"location": "emptyDir"}, progress={"done": 2, "failed": 1, "total": 10})
    decision = decide(seen(owner=cancelled(status, results={"emptyDir": {}})), NOW)
    assert failure(decision)["message"].endswith("with 3 of 10 rollouts recorded; they went with the evaluator's pod")


def test_what_the_evaluator_answered_last_is_shown_where_it_left_no_word():
    decision = decide(seen(progress=progress(Stage.COLLECTING, done=3)), NOW)
    assert decision.status["progress"]["summary"] == "3/10"


def test_a_node_that_is_away_does_not_hold_up_the_end():
    pod = evaluator(workload(), phase="Running", deleted=True)
    assert not holds(decide(seen(pod), NOW), "Failed")
    late = decide(seen(pod), after(3600))
    assert late.status["phase"] == "Cancelled"


def test_no_new_attempt_follows_a_cancelled_one():
    lost = evaluator(workload(), states={"agent-evaluate": ended(137)}, phase="Failed")
    decision = decide(seen(lost), NOW)
    assert decision.status["phase"] == "Cancelled" and not [k for k in kinds(decision) if k.startswith("Create")]


@pytest.mark.parametrize(
    ("pod", "phase"),
    [
        (finished_evaluator(workload(), outcome()), "Succeeded"),
        (told_to_end(result=outcome()), "Succeeded"),
        (told_to_end(deleted=False, result=outcome("Failed", reason="CoverageTooLow")), "Failed"),
        (told_to_end(result=outcome("Failed", reason="CoverageTooLow")), "Cancelled"),
    ],
    ids=["done", "done in its grace", "failed by itself", "failed as its pods went"],
)
def test_an_evaluator_that_ended_by_itself_has_the_say(pod, phase):
    assert decide(seen(pod), NOW).status["phase"] == phase


@pytest.mark.parametrize("final", ["Complete", "Failed"])
def test_a_finished_job_ignores_it(final):
    status = accepted_status(phase="Succeeded", conditions=[condition(final, True, "AllRolloutsRecorded")])
    decision = decide(seen(owner=cancelled(status)), NOW)
    assert decision.status == status | {"phase": "Succeeded"}
    assert kinds(decision) == []


def test_a_failed_job_and_a_cancelled_one_differ_by_the_reason_alone():
    assert phase([condition("Failed", True, "Cancelled")]) == "Cancelled"
    assert phase([condition("Failed", True, "CoverageTooLow")]) == "Failed"


def test_what_the_user_asked_for_is_no_warning():
    owner = {
        "apiVersion": "evals.nhx.io/v1alpha1",
        "kind": "AgentEvalJob",
        "metadata": {"uid": "1", "name": "mcqa", "namespace": "team"},
    }
    entries = [condition("Failed", True, "Cancelled"), condition("Running", False, "Cancelling")]
    assert [event["type"] for event in events.of_transitions(owner, (), entries)] == ["Normal", "Normal"]
