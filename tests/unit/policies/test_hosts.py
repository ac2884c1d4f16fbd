"""The gym host: what makes it unusable, when it is of no use any more, and which one is missing."""

import re

import pytest

from nhx_gym_operator.api.pod_rules import POD_SECURITY
from nhx_gym_operator.api.wire.endpoints import Stage
from nhx_gym_operator.api.wire.reports import GATE_OPEN_EXIT_CODE
from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.policies import hosts, sandbox_lacks
from nhx_gym_operator.controller.status_draft import StatusDraft
from nhx_gym_operator.controller.trimming import trimmed
from support import stuck
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
    return hosts.find_fault(observe(**changes), attempt(pod), NOW)


def removed(pod, moment=NOW, address=SERVICE_IP, **changes):
    return hosts.to_remove(observe(**changes), attempt(pod), address, moment) == [pod]


def serving(ordinal=0, **changes):
    pod = host(workload(), ordinal, states=SERVING, phase="Running")
    return {**pod, "spec": {**pod["spec"], **changes}}


def of_several(number, **changes):
    """What is seen of a job of so many hosts."""
    return observe(job(status=accepted_status(), hosts=number, gym={"concurrency": 16}), **changes)


def gone(ordinal=0, times=1):
    """A host that was lost so often."""
    pods = (host(workload(), ordinal, states=SERVING, phase="Failed") for _ in range(times))
    return tuple(live(pod, uid=f"gone-{ordinal}-{n}") for n, pod in enumerate(pods))


NO_VERDICT = {"sandbox-gate": ended(1, "the evaluator did not answer", reason="Error")}
OPEN = {"sandbox-gate": ended(GATE_OPEN_EXIT_CODE, "still reached kubernetes-api", reason="Error")}


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
    if reason == "SandboxOpen":
        stuck.assert_said("An init container fails", found.message)


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
        ({"volumes": [{"name": "tokens", "projected": {"sources": []}}]}, "'tokens'"),
        ({"volumes": [{"name": "tokens", "secret": {"secretName": "cloud"}}]}, "'tokens'"),
        ({"volumes": [{"name": f"x{number}", "hostPath": {"path": "/"}} for number in range(10_000)]}, "10000 values"),
        ({"containers": [*serving()["spec"]["containers"], *[{"name": "x"}] * 10_000]}, "10000 values"),
        ({"runtimeClassName": "runc"}, "'runc'"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"shareProcessNamespace": True}, "shareProcessNamespace"),
        ({"securityContext": POD_SECURITY | {"seccompProfile": {"type": "Unconfined"}}}, "seccompProfile"),
        ({"securityContext": {"runAsNonRoot": True}}, "seccompProfile"),
    ],
)
def test_a_pod_that_admission_opened_is_refused_by_what_opens_it(changes, named):
    if "volumes" in changes:
        changes = {"volumes": [*serving()["spec"]["volumes"], *changes["volumes"]]}
    found = fault(trimmed(serving(**changes)))
    assert found.reason == "PodChanged" and named in found.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("privileged", True),
        ("allowPrivilegeEscalation", True),
        ("capabilities", {"drop": ["ALL"], "add": ["NET_ADMIN"]}),
        ("readOnlyRootFilesystem", False),
        ("procMount", "Unmasked"),
        ("seccompProfile", {"type": "Unconfined"}),
        ("runAsNonRoot", False),
    ],
)
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_container_whose_rights_admission_changed_is_refused_by_field_and_name(where, field, value):
    (container,) = serving()["spec"][where]
    changed = {**container, "securityContext": {**container["securityContext"], field: value}}
    found = fault(serving(**{where: [changed]}))
    assert found.reason == "PodChanged"
    assert f"securityContext.{field}" in found.message and repr(container["name"]) in found.message


TOOL = {"name": "TOOL", "valueFrom": {"secretKeyRef": {"name": "tool", "key": "token"}}}


@pytest.mark.parametrize(
    "brought",
    [
        {"env": [TOOL, {"name": "CLOUD", "valueFrom": {"secretKeyRef": {"name": "cloud", "key": "key"}}}]},
        {"env": [TOOL, {"name": "CLOUD", "valueFrom": {"secretKeyRef": {"name": "tool", "key": "cloud"}}}]},
        {"envFrom": [{"secretRef": {"name": "cloud"}}]},
        {"envFrom": [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "tool"}}]},
    ],
    ids=["a Secret", "another key of a named Secret", "all of a Secret", "all of a named Secret"],
)
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_secret_that_admission_put_into_a_host_is_refused_by_name(where, brought):
    owner = job(status=accepted_status(), gym={"envSecrets": {"TOOL": TOOL["valueFrom"]}})
    (container,) = host(workload(owner))["spec"][where]
    found = fault(serving(**{where: [container | brought]}), owner=owner)
    assert found.reason == "PodChanged" and repr(container["name"]) in found.message
    assert re.search(r"(key '\w+'|all) of Secret '(cloud|tool)'", found.message)


def test_a_pod_that_is_as_it_was_asked_for_is_no_fault():
    owner = job(status=accepted_status(), gym={"envSecrets": {"TOOL": TOOL["valueFrom"]}})
    asked = host(workload(owner), states=SERVING, phase="Running")
    assert TOOL in asked["spec"]["containers"][0]["env"]
    assert fault(asked, owner=owner) is None and fault(serving()) is None


@pytest.mark.parametrize(
    "brought",
    [
        {"env": [{"name": "REGION", "value": "here"}, {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}]},
        {"envFrom": [{"configMapRef": {"name": "settings"}}]},
    ],
)
def test_what_admission_adds_that_is_no_secret_is_borne(brought):
    (container,) = serving()["spec"]["containers"]
    assert fault(serving(containers=[container | brought])) is None


def test_hosts_that_are_lost_again_and_again_are_a_fault():
    ghosts = tuple(live(host(workload()), uid=f"gone-{n}") for n in range(7))
    assert fault(serving(), ghosts=ghosts[:6]) is None
    found = fault(serving(), ghosts=ghosts)
    assert found.reason == "HostLost" and "7 gym hosts of attempt 1" in found.message


@pytest.mark.parametrize(("lost", "pause"), [(0, 0), (1, 0), (2, 10), (3, 20), (9, 360)])
def test_the_first_lost_host_is_replaced_at_once_and_further_ones_after_longer_and_longer(lost, pause):
    state = {"sandbox-gate": ended(), "gym-host": ended(1, at="2026-11-29T12:00:00Z", reason="Error")}
    ghosts = tuple(live(host(workload(), states=state), uid=f"gone-{n}") for n in range(lost))
    assert hosts.pause_left(observe(ghosts=ghosts), attempt(), 0, NOW) == pause
    assert hosts.pause_left(observe(ghosts=ghosts), attempt(), 1, NOW) == 0


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
    there = [host(workload(), ordinal) for ordinal in present]
    assert hosts.absent(of_several(2), attempt(*there), NOW) == missing


def test_a_host_without_its_ordinal_is_the_first():
    pod = serving()
    del pod["metadata"]["labels"]["evals.nhx.io/ordinal"]
    assert hosts.absent(observe(), attempt(pod), NOW) == []


# Of several hosts


def test_a_gate_without_a_verdict_is_a_fault_only_where_no_host_has_one():
    failed = [host(workload(), n, states=NO_VERDICT, phase="Failed") for n in range(2)]
    assert hosts.find_fault(of_several(2), attempt(failed[0], serving(1)), NOW) is None
    assert hosts.to_remove(of_several(2), attempt(failed[0], serving(1)), SERVICE_IP, NOW) == [failed[0]]
    assert hosts.find_fault(of_several(2), attempt(*failed), NOW).reason == "GateFailed"


def test_one_open_sandbox_ends_a_job_of_several_hosts():
    opened = host(workload(), 1, states=OPEN, phase="Failed")
    assert hosts.find_fault(of_several(2), attempt(serving(), opened), NOW).reason == "SandboxOpen"
    changed = serving(1, hostNetwork=True)
    assert hosts.find_fault(of_several(2), attempt(serving(), changed), NOW).reason == "PodChanged"


def test_a_host_that_is_lost_again_and_again_is_not_made_again_and_the_others_go_on():
    seen = of_several(2, ghosts=gone(1, times=7))
    assert hosts.find_fault(seen, attempt(serving()), NOW) is None
    assert hosts.absent(seen, attempt(serving()), NOW) == []
    assert hosts.absent(of_several(2, ghosts=gone(1, times=6)), attempt(serving()), NOW) == [1]


def test_several_hosts_that_were_all_lost_too_often_are_a_fault():
    found = hosts.find_fault(of_several(2, ghosts=gone(0, times=7) + gone(1, times=7)), attempt(), NOW)
    assert found.reason == "HostLost" and "for each of them" in found.message


def test_hosts_that_were_withdrawn_with_a_refused_one_are_no_lost_hosts():
    withdrawn = tuple(
        live(pod, uid=f"w-{n}", creationTimestamp="2026-11-29T11:58:59Z") for n, pod in enumerate(gone(0, 9))
    )
    seen = of_several(1, ghosts=withdrawn)
    assert hosts.find_fault(seen, attempt(serving()), NOW) is None
    assert hosts.pause_left(seen, attempt(), 0, NOW) == 0


@pytest.mark.parametrize(
    ("ready", "stage", "is_ready", "reason"),
    [
        (0, Stage.STARTING, False, "HostStarting"),
        (1, Stage.STARTING, True, "SomeHostsReady"),
        (1, Stage.COLLECTING, True, "SomeHostsReady"),
        (3, Stage.COLLECTING, True, "HostReady"),
        (0, Stage.COLLECTING, False, "HostLost"),
        (1, Stage.SCORING, True, "HostReady"),
    ],
)
def test_a_sandbox_is_ready_with_its_first_host_and_says_what_the_others_wait_for(ready, stage, is_ready, reason):
    heard = progress(stage, hosts=3, hosts_ready=ready, message="waiting for gym host 2 to start Gym")
    found = hosts.readiness(of_several(3, progress=heard), attempt(serving(), serving(1), serving(2)), NOW)
    assert (found.ready, found.reason) == (is_ready, reason)
    assert (reason == "SomeHostsReady") <= ("gym host 2" in found.message)


def test_a_host_that_is_not_made_again_is_named():
    heard = progress(hosts=2, hosts_ready=1, message="1 of 2 gym hosts take rollouts")
    found = hosts.readiness(of_several(2, progress=heard, ghosts=gone(1, times=7)), attempt(serving()), NOW)
    assert "gym host 1 was lost more often than spec.backoffLimit (6) and is not made again" in found.message


def test_what_keeps_one_host_away_is_said_beside_the_others_and_is_the_state_only_where_none_is_ready():
    draft = StatusDraft(job(status=accepted_status()), NOW)
    sandbox_lacks.show(draft, "Unschedulable", "0/3 nodes")
    entry = draft.condition("SandboxReady")
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", "Unschedulable", "0/3 nodes")
    draft.set("SandboxReady", True, "SomeHostsReady", "1 of 2 gym hosts take rollouts")
    sandbox_lacks.show(draft, "Unschedulable", "0/3 nodes")
    assert (entry["status"], entry["reason"]) == ("True", "SomeHostsReady")
    assert entry["message"] == "1 of 2 gym hosts take rollouts; 0/3 nodes"


def test_the_service_is_known_by_the_plan_of_a_host_that_runs():
    evaluating = evaluator(workload())
    assert hosts.known_address((evaluating, serving())) == SERVICE_IP
    assert hosts.known_address((evaluating,)) is None
    assert hosts.known_address((host(workload(), states=SERVING, phase="Failed"),)) is None
