"""The gym host: what makes it unusable, when it is of no use any more, and which one is missing."""

import pytest

from nhx_gym_operator.api.wire.endpoints import Stage
from nhx_gym_operator.api.wire.reports import GATE_OPEN_EXIT_CODE
from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.policies import hosts
from nhx_gym_operator.workloads import pods
from support.controller_values import (
    CREATED,
    NOW,
    SERVICE_IP,
    accepted_status,
    after,
    ended,
    evaluator,
    host,
    job,
    live,
    observe,
    progress,
    running,
    workload,
)

SERVING = {"sandbox-gate": ended(), "gym-host": running()}


def attempt(*of_hosts):
    return Attempt(1, evaluator(workload(), states={"agent-evaluate": running()}, phase="Running"), of_hosts)


def fault(pod, **changes):
    return hosts.find_fault(observe(**changes), attempt(pod))


def removed(pod, moment=NOW, address=SERVICE_IP, **changes):
    return hosts.to_remove(observe(**changes), attempt(pod), address, moment) == [pod]


def serving(**changes):
    pod = host(workload(), states=SERVING, phase="Running")
    return {**pod, "spec": {**pod["spec"], **changes}}


@pytest.mark.parametrize(
    ("code", "message", "reason", "words"),
    [
        (GATE_OPEN_EXIT_CODE, "still reached kubernetes-api", "SandboxOpen", "still reached kubernetes-api"),
        (1, "the evaluator did not answer", "GateFailed", "the evaluator did not answer"),
        (137, "", "GateFailed", "exit code 137"),
    ],
    ids=["open", "no verdict", "killed"],
)
def test_a_gate_that_did_not_pass_is_a_fault_in_its_own_words(code, message, reason, words):
    found = fault(host(workload(), states={"sandbox-gate": ended(code, message, reason="Error")}, phase="Failed"))
    assert (found.reason, found.message) == (reason, words)


def test_a_container_that_nobody_asked_for_is_a_fault_by_name():
    for where in ("containers", "initContainers", "ephemeralContainers"):
        there = serving()["spec"].get(where, [])
        found = fault(serving(**{where: [*there, {"name": "sidecar", "image": "x"}]}))
        assert found.reason == "PodChanged" and "sidecar" in found.message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"volumes": [{"name": "aws-iam-token", "projected": {"sources": []}}]}, "'aws-iam-token'"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "'x'"),
        ({"runtimeClassName": "runc"}, "'runc'"),
        ({"hostNetwork": True}, "hostNetwork"),
    ],
)
def test_a_pod_that_admission_opened_is_refused_by_what_opens_it(changes, named):
    if "volumes" in changes:
        changes = {"volumes": [*serving()["spec"]["volumes"], *changes["volumes"]]}
    found = fault(serving(**changes))
    assert found.reason == "PodChanged" and named in found.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("privileged", True),
        ("allowPrivilegeEscalation", True),
        ("capabilities", {"drop": ["ALL"], "add": ["NET_ADMIN"]}),
        ("readOnlyRootFilesystem", False),
        ("procMount", "Unmasked"),
    ],
)
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_container_whose_rights_admission_changed_is_refused_by_field_and_name(where, field, value):
    (container,) = serving()["spec"][where]
    changed = {**container, "securityContext": {**container["securityContext"], field: value}}
    found = fault(serving(**{where: [changed]}))
    assert found.reason == "PodChanged"
    assert f"securityContext.{field}" in found.message and repr(container["name"]) in found.message


def test_a_pod_that_is_as_it_was_asked_for_is_no_fault():
    assert fault(serving()) is None


def test_hosts_that_are_lost_again_and_again_are_a_fault():
    ghosts = tuple(live(host(workload()), uid=f"gone-{n}") for n in range(7))
    assert fault(serving(), ghosts=ghosts[:6]) is None
    found = fault(serving(), ghosts=ghosts)
    assert found.reason == "HostLost" and "7 gym hosts of attempt 1" in found.message


@pytest.mark.parametrize(("lost", "pause"), [(0, 0), (1, 0), (2, 10), (3, 20), (9, 360)])
def test_the_first_lost_host_is_replaced_at_once_and_further_ones_after_longer_and_longer(lost, pause):
    state = {"sandbox-gate": ended(), "gym-host": ended(1, at="2026-11-29T12:00:00Z", reason="Error")}
    ghosts = tuple(live(host(workload(), states=state), uid=f"gone-{n}") for n in range(lost))
    assert hosts.pause_left(observe(ghosts=ghosts), attempt(), NOW) == pause


def test_the_limit_of_lost_hosts_is_the_jobs():
    ghosts = (live(host(workload()), uid="gone"),)
    found = fault(serving(), owner=job(status=accepted_status(), backoffLimit=0), ghosts=ghosts)
    assert found.reason == "HostLost" and "spec.backoffLimit is 0" in found.message


def test_a_host_that_crashed_goes_after_the_evaluator_had_its_say():
    crashed = {"sandbox-gate": ended(), "gym-host": ended(137, at=CREATED, reason="OOMKilled")}
    pod = host(workload(), states=crashed, phase="Failed")
    assert not removed(pod, after(-50))
    assert hosts.look_again_after(attempt(pod), after(-50)) == pytest.approx(5.0)
    assert removed(pod, NOW) and hosts.look_again_after(attempt(pod), NOW) is None


def test_an_evicted_host_goes_at_once():
    assert removed(host(workload(), phase="Failed", reason="Evicted"), after(-50))


@pytest.mark.parametrize("seen", [None, progress(Stage.SCORING, done=10)], ids=["nothing heard", "scoring"])
def test_a_host_that_ended_as_told_stays(seen):
    done = {"sandbox-gate": ended(), "gym-host": ended(0)}
    assert not removed(host(workload(), states=done, phase="Succeeded"), progress=seen)


def test_a_host_goes_that_knows_an_address_which_the_service_no_longer_has():
    assert not removed(serving())
    assert removed(serving(), address="10.96.9.9")
    assert not removed(serving(), address="10.96.9.9", progress=progress(Stage.SCORING, done=10))


@pytest.mark.parametrize(
    ("present", "missing"), [((), [0, 1]), ((0,), [1]), ((1,), [0]), ((1, 0), [])], ids=["none", "0", "1", "both"]
)
def test_of_two_hosts_the_one_that_is_gone_is_made_again(present, missing):
    there = [live(pods.host_pod(workload(), ordinal)) for ordinal in present]
    assert hosts.absent(attempt(*there), 2) == missing


def test_a_host_without_its_ordinal_is_the_first():
    pod = serving()
    del pod["metadata"]["labels"]["evals.nhx.io/ordinal"]
    assert hosts.absent(attempt(pod), 1) == []


def test_the_service_is_known_by_the_plan_of_a_host_that_runs():
    evaluating = evaluator(workload())
    assert hosts.known_address((evaluating, serving())) == SERVICE_IP
    assert hosts.known_address((evaluating,)) is None
    assert hosts.known_address((host(workload(), states=SERVING, phase="Failed"),)) is None
