"""From an accepted job to its pods: in which order things are made, and what a refusal does."""

import pytest

from nhx_gym_operator.api.conditions import PodReason
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.inputs import Inputs
from nhx_gym_operator.controller.observation import PodsRefused
from nhx_gym_operator.workloads import network, storage
from support.controller_values import (
    NOW,
    accepted_status,
    after,
    condition,
    condition_of,
    evaluator,
    holds,
    host,
    installation,
    job,
    kinds,
    live,
    live_service,
    new,
    observe,
    workload,
)

COLOCATED = {"sandbox": {"mode": "Disabled"}}


def prepared(**changes):
    """A sandboxed job whose first look is over."""
    of = workload()
    values = {
        "owner": job(status=decide(new(), NOW).status),
        "service": live_service(of),
        "policies": tuple(live(policy) for policy in network.network_policies(of)),
        "claim": live(storage.own_claim(of)),
    }
    return new(**(values | changes))


def refusal(retry_at=NOW, reason=PodReason.POD_REFUSED):
    return PodsRefused(reason, "Pod 'mcqa-host-0-1' was refused: exceeded quota: pods, used: 4, limited: 4", retry_at)


def test_address_policies_and_claim_come_before_any_pod():
    decision = decide(new(), NOW)
    assert kinds(decision) == [
        "Apply Service mcqa",
        "Apply NetworkPolicy mcqa-host",
        "Apply NetworkPolicy mcqa-evaluator",
        "Apply PersistentVolumeClaim mcqa-results",
    ]
    assert decision.status["phase"] == "Pending"


def test_both_pods_are_asked_for_together_after_their_secrets():
    shown = kinds(decide(prepared(), NOW))
    assert shown[0].startswith("Create Secret mcqa-evaluator-")
    assert shown[1].startswith("Create Secret mcqa-host-0-")
    assert shown[2:] == ["CreateTogether mcqa-evaluator-1 mcqa-host-0-1"]


def test_pods_of_several_hosts_are_asked_for_together_each_with_a_secret_of_its_own():
    placed = decide(new(job(hosts=3)), NOW).status
    shown = kinds(decide(prepared(owner=job(status=placed, hosts=3)), NOW))
    secrets = [name.rsplit("-", 1)[0] for name in shown[:4]]
    assert secrets == ["Create Secret mcqa-evaluator", *(f"Create Secret mcqa-host-{n}" for n in range(3))]
    assert shown[4:] == ["CreateTogether mcqa-evaluator-1 mcqa-host-0-1 mcqa-host-1-1 mcqa-host-2-1"]


def test_a_colocated_job_needs_no_service():
    decision = decide(new(installation=installation(**COLOCATED)), NOW)
    assert not [action for action in kinds(decision) if "Service" in action]
    placed = new(job(status=decision.status), installation=installation(**COLOCATED))
    assert kinds(decide(placed, NOW))[-1] == "CreateTogether mcqa-gym-tasks-1"


@pytest.mark.parametrize("settings", [{}, COLOCATED])
def test_where_a_job_runs_is_written_before_anything_runs_there(settings):
    """An operator that dies in between is followed by one that may place it elsewhere."""
    decision = decide(new(installation=installation(**settings), service=live_service(workload())), NOW)
    assert decision.status["placement"]
    assert not [action for action in kinds(decision) if action.startswith("Create")]


def test_a_job_with_pods_was_accepted_whether_or_not_its_operator_lived_to_say_so():
    waiting = condition("Accepted", False, "ConfigMapNotFound")
    decision = decide(observe(job(status=accepted_status(conditions=[waiting]))), NOW)
    assert holds(decision, "Accepted") and decision.status["phase"] == "Starting"


@pytest.mark.parametrize(("settings", "image"), [({}, "reg/nhx-tasks:1"), (COLOCATED, "reg/nhx-gym-tasks:1")])
def test_a_job_names_the_image_that_can_read_its_results(settings, image):
    """For a reader that comes when the pods are gone, and where the image has no digest."""
    decision = decide(new(installation=installation(**settings)), NOW)
    assert decision.status["results"]["image"] == image


def test_the_attempt_is_written_only_after_its_pods_were_seen():
    assert "attempt" not in decide(prepared(), NOW).status
    seen = decide(observe(job(status=decide(prepared(), NOW).status)), NOW)
    assert seen.status["attempt"] == 1
    assert seen.status["phase"] == "Starting"


def test_a_host_that_an_interrupted_start_left_gets_its_evaluator():
    decision = decide(prepared(pods=(host(workload()),), inputs=Inputs()), NOW)
    assert kinds(decision)[-1] == "CreateTogether mcqa-evaluator-1 mcqa-host-0-1"


def test_a_refusal_is_shown_and_waited_out():
    decision = decide(prepared(refusal=refusal(after(3))), NOW)
    entry = condition_of(decision, "Running")
    assert (entry["status"], entry["reason"]) == ("False", "PodRefused")
    assert "exceeded quota: pods, used: 4, limited: 4" in entry["message"]
    assert decision.status["phase"] == "Pending"
    assert decision.actions == ()
    assert decision.requeue_after == pytest.approx(3.0)


def test_after_the_pause_the_pods_are_asked_for_again():
    assert kinds(decide(prepared(refusal=refusal(NOW)), NOW))[-1].startswith("CreateTogether")


def test_a_refusal_ends_the_job_at_a_deadline_of_its_own():
    first = decide(prepared(refusal=refusal(NOW)), after(-3600))
    decision = decide(prepared(owner=job(status=first.status), refusal=refusal(after(1))), NOW)
    assert condition_of(decision, "Failed")["reason"] == "PodRefused"
    assert "timeouts.podAdmissionSeconds" in condition_of(decision, "Failed")["message"]


def test_waiting_for_a_quota_is_not_charged_to_the_pods_start():
    first = decide(prepared(refusal=refusal(NOW)), after(-1800))
    assert not holds(decide(prepared(owner=job(status=first.status), refusal=refusal(after(1))), NOW), "Failed")


def test_an_object_that_is_not_ours_is_named():
    decision = decide(prepared(refusal=refusal(after(1), PodReason.CHILD_NOT_OURS)), NOW)
    assert condition_of(decision, "Running")["reason"] == "ChildNotOurs"
    assert decision.status["phase"] == "Pending"


def test_withdrawn_pods_are_waited_for():
    going = evaluator(workload(), deleted=True)
    decision = decide(prepared(pods=(going,)), NOW)
    assert decision.actions == ()
    assert decision.requeue_after == 2.0
    assert "attempt" not in decision.status


def test_a_job_that_is_being_deleted_makes_nothing_and_stops_its_pods_at_once():
    deleted = job(metadata={"deletionTimestamp": "2026-11-29T11:59:59Z"})
    decision = decide(observe(deleted), NOW)
    assert kinds(decision) == ["DeletePod mcqa-evaluator-1", "DeletePod mcqa-host-0-1"]
    assert decide(new(deleted), NOW).actions == ()


def test_a_job_that_is_accepted_says_how_it_is_fenced():
    assert "gvisor" in condition_of(decide(new(), NOW), "Accepted")["message"]
    colocated = decide(new(installation=installation(**COLOCATED)), NOW)
    assert "share one container" in condition_of(colocated, "Accepted")["message"]


def test_a_condition_keeps_its_time_while_its_status_stays():
    old = condition("Running", False, "PodRefused", "2026-11-29T10:00:00Z")
    status = {"placement": "Sandboxed", "isolation": "Kernel", "runtimeClassName": "gvisor", "conditions": [old]}
    decision = decide(prepared(owner=job(status=status), refusal=refusal(after(1))), NOW)
    assert condition_of(decision, "Running")["lastTransitionTime"] == "2026-11-29T10:00:00Z"
