"""Where jobs run: every combination of settings and cluster, and what refuses a job."""

import pytest

from nhx_gym_operator.api.conditions import AcceptedReason
from nhx_gym_operator.api.waits import without_until
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.inputs import Inputs, Missing
from nhx_gym_operator.controller.measuring.findings import Standing, State
from support.controller_values import (
    NOW,
    accepted_status,
    after,
    condition,
    condition_of,
    ended,
    evaluator,
    holds,
    host,
    installation,
    job,
    kinds,
    new,
    observe,
    progress,
    running,
    workload,
)

FILESET = {"gym": {"environment": {"fileSet": {"name": "mine"}}}}
DENIED = Missing(AcceptedReason.ACCESS_DENIED, "the operator may not get runtimeclasses")


def decided(*, mode="Auto", isolation="Kernel", runtime_class=True, standing=None, now=NOW, **changes):
    settings = {"sandbox": {"mode": mode, "isolation": isolation}}
    found = {"runtime_class": runtime_class, "standing": standing, "inputs": Inputs()}
    return decide(new(job(**changes), installation=installation(**settings), **found), now)


@pytest.mark.parametrize(
    ("mode", "isolation", "runtime_class", "placement", "isolated_by", "runtime"),
    [
        ("Auto", "Kernel", True, "Sandboxed", "Kernel", "gvisor"),
        ("Auto", "Kernel", False, "Colocated", "ContainerOnly", None),
        ("Auto", "Kernel", DENIED, "Colocated", "ContainerOnly", None),
        ("Auto", "ContainerOnly", None, "Sandboxed", "ContainerOnly", None),
        ("Required", "Kernel", True, "Sandboxed", "Kernel", "gvisor"),
        ("Required", "ContainerOnly", None, "Sandboxed", "ContainerOnly", None),
        ("Disabled", "Kernel", None, "Colocated", "ContainerOnly", None),
        ("Disabled", "ContainerOnly", None, "Colocated", "ContainerOnly", None),
    ],
)
def test_a_built_in_server_is_placed_by_the_settings(mode, isolation, runtime_class, placement, isolated_by, runtime):
    status = decided(mode=mode, isolation=isolation, runtime_class=runtime_class).status
    assert (status["placement"], status["isolation"], status.get("runtimeClassName")) == (
        placement,
        isolated_by,
        runtime,
    )


@pytest.mark.parametrize("runtime_class", [False, DENIED])
def test_a_required_sandbox_that_is_not_there_refuses_the_job(runtime_class):
    decision = decided(mode="Required", runtime_class=runtime_class)
    refused = condition_of(decision, "Accepted")
    assert (refused["status"], refused["reason"]) == ("False", "SandboxUnavailable")
    assert "sandbox.mode is Required" in refused["message"]
    assert decision.status["phase"] == "Failed"
    assert decision.actions == ()


@pytest.mark.parametrize(
    ("mode", "runtime_class", "setting"),
    [
        ("Disabled", None, "sandbox.mode"),
        ("Auto", False, "sandbox.runtimeClassName"),
        ("Auto", DENIED, "may not get runtimeclasses"),
    ],
)
def test_code_from_a_fileset_is_refused_without_a_sandbox_and_the_setting_is_named(mode, runtime_class, setting):
    decision = decided(mode=mode, runtime_class=runtime_class, **FILESET)
    for kind in ("Accepted", "Failed"):
        entry = condition_of(decision, kind)
        assert entry["reason"] == "EnvironmentNeedsSandbox"
        assert setting in entry["message"] and "'mine'" in entry["message"]
    assert not holds(decision, "Accepted") and holds(decision, "Failed")


@pytest.mark.parametrize(("mode", "setting"), [("Disabled", "sandbox.mode"), ("Auto", "sandbox.runtimeClassName")])
def test_several_hosts_are_refused_without_a_sandbox_and_the_setting_is_named(mode, setting):
    decision = decided(mode=mode, runtime_class=False, hosts=2)
    refused = condition_of(decision, "Failed")
    assert refused["reason"] == "HostsNeedSandbox" and decision.actions == ()
    assert setting in refused["message"] and "spec.hosts is 2" in refused["message"]
    assert decided(mode=mode, runtime_class=False, hosts=1).status["placement"] == "Colocated"


def test_a_pinned_placement_stays_when_the_settings_change():
    pinned = job(status={"placement": "Colocated", "isolation": "ContainerOnly"})
    decision = decide(new(pinned, installation=installation(sandbox={"mode": "Required"})), NOW)
    assert decision.status["placement"] == "Colocated"
    assert not holds(decision, "Failed")


HOLDS = Standing(State.HOLDS, "its own kernel; denied (measured on node 'n')")
FAILS = Standing(State.FAILS, "network policies are not enforced; set sandbox.mode")
NOT_KNOWN = Standing(State.NOT_KNOWN, "canary pods are about to show it; canary.enabled")
IN_DOUBT = Standing(State.IN_DOUBT, "it is measured again whether a sandbox holds; last: not enforced")


@pytest.mark.parametrize(
    ("mode", "isolation", "runtime_class", "standing", "placement"),
    [
        ("Auto", "Kernel", True, HOLDS, "Sandboxed"),
        # Not to be looked up, but measured: installed without cluster rights.
        ("Auto", "Kernel", DENIED, HOLDS, "Sandboxed"),
        ("Required", "Kernel", DENIED, HOLDS, "Sandboxed"),
        ("Auto", "Kernel", True, FAILS, "Colocated"),
        ("Auto", "ContainerOnly", None, FAILS, "Colocated"),
        # Deleted since it was measured.
        ("Auto", "Kernel", False, HOLDS, "Colocated"),
        ("Disabled", "Kernel", None, None, "Colocated"),
    ],
)
def test_auto_means_what_was_measured(mode, isolation, runtime_class, standing, placement):
    status = decided(mode=mode, isolation=isolation, runtime_class=runtime_class, standing=standing).status
    assert status["placement"] == placement
    if standing and placement == "Sandboxed":
        assert status["placementReason"] == standing.message
    if standing is FAILS:
        assert status["placementReason"] == FAILS.message


@pytest.mark.parametrize(
    ("mode", "reason", "changes"),
    [("Required", "SandboxUnavailable", {}), ("Auto", "EnvironmentNeedsSandbox", FILESET)],
)
@pytest.mark.parametrize(
    ("runtime_class", "standing", "setting"),
    [(True, FAILS, "sandbox.mode"), (False, HOLDS, "sandbox.runtimeClassName")],
    ids=["measured", "deleted"],
)
def test_what_needs_a_sandbox_that_does_not_hold_is_refused_and_nothing_is_made(
    mode, reason, changes, runtime_class, standing, setting
):
    decision = decided(mode=mode, runtime_class=runtime_class, standing=standing, **changes)
    refused = condition_of(decision, "Failed")
    assert (refused["status"], refused["reason"]) == ("True", reason)
    assert setting in refused["message"]
    assert decision.actions == () and "placement" not in decision.status


@pytest.mark.parametrize("mode", ["Auto", "Required"])
@pytest.mark.parametrize("changes", [{}, FILESET], ids=["built in", "own"])
@pytest.mark.parametrize("standing", [NOT_KNOWN, IN_DOUBT])
def test_nothing_is_placed_on_a_guess(mode, changes, standing):
    decision = decided(mode=mode, standing=standing, **changes)
    waits = condition_of(decision, "Accepted")
    assert (waits["status"], waits["reason"]) == ("False", "SandboxNotMeasured")
    assert without_until(waits["message"]) == standing.message
    assert decision.status["phase"] == "Pending"
    assert "placement" not in decision.status and decision.actions == ()
    assert decision.requeue_after and not holds(decision, "Failed")


def test_a_measurement_is_waited_for_as_long_as_a_pod_may_take_to_start():
    waiting = {"status": {"conditions": [condition("Accepted", False, "SandboxNotMeasured")]}}
    assert not holds(decided(standing=NOT_KNOWN, now=after(800), **waiting), "Failed")
    failed = condition_of(decided(standing=NOT_KNOWN, now=after(900), **waiting), "Failed")
    assert failed["reason"] == "SandboxNotMeasured"
    assert "timeouts.podStartSeconds" in failed["message"] and "canary.enabled" in failed["message"]


def test_a_job_that_can_never_run_does_not_wait_for_a_measurement():
    decision = decided(standing=NOT_KNOWN, gym={"resourcesServer": "no_such_server"})
    assert condition_of(decision, "Failed")["reason"] == "UnknownBundledServer"


def test_a_job_that_waits_for_a_measurement_can_be_cancelled():
    decision = decided(standing=NOT_KNOWN, cancel=True)
    assert decision.status["phase"] == "Cancelled"


PINNED = {"placement": "Sandboxed", "isolation": "Kernel", "runtimeClassName": "gvisor"}


@pytest.mark.parametrize("lost", [FAILS, IN_DOUBT])
def test_a_job_in_a_sandbox_that_was_lost_gets_no_pods_and_never_runs_without(lost):
    decision = decide(new(job(status=PINNED), standing=lost), NOW)
    waits = condition_of(decision, "Accepted")
    assert (waits["status"], waits["reason"]) == ("False", "SandboxUnavailable")
    assert without_until(waits["message"]) == lost.message
    assert decision.actions == () and decision.status["placement"] == "Sandboxed"
    assert kinds(decide(new(job(status=PINNED), standing=HOLDS), NOW)) != []


def test_a_lost_host_is_not_replaced_in_a_sandbox_that_was_lost():
    alone = (evaluator(workload()),)
    assert "CreateTogether mcqa-host-0-1" in kinds(decide(observe(pods=alone, standing=HOLDS), NOW))
    decision = decide(observe(pods=alone, standing=FAILS), NOW)
    assert not any("host" in action for action in kinds(decision))
    ready = condition_of(decision, "SandboxReady")
    assert (ready["status"], ready["reason"]) == ("False", "SandboxUnavailable")


CONTAINER = {"placement": "Sandboxed", "isolation": "ContainerOnly"}


@pytest.mark.parametrize(
    ("pinned", "sandbox"),
    [
        (PINNED | {"runtimeClassName": "kata"}, {}),
        (CONTAINER, {}),
        (CONTAINER | {"runtimeClassName": "debug"}, {"isolation": "ContainerOnly"}),
        (PINNED | {"runtimeClassName": "debug"}, {"isolation": "ContainerOnly"}),
    ],
)
def test_a_sandbox_that_the_settings_do_not_name_gets_no_further_pods_whoever_pinned_it(pinned, sandbox):
    of = installation(sandbox=sandbox)
    decision = decide(new(job(status=pinned, **FILESET), installation=of, standing=HOLDS), NOW)
    assert decision.actions == ()
    failed = condition_of(decision, "Failed")
    assert failed["reason"] == "SandboxUnavailable" and "sandbox.runtimeClassName" in failed["message"]
    alone = observe(job(status=pinned), pods=(evaluator(workload()),), installation=of, standing=HOLDS)
    assert not any("host" in action for action in kinds(decide(alone, NOW)))


@pytest.mark.parametrize("pinned", [PINNED, PINNED | {"runtimeClassName": "kata"}, CONTAINER])
def test_nor_does_it_get_a_host_beside_one_that_takes_rollouts_which_goes_on(pinned):
    two = job(status=accepted_status(**{"runtimeClassName": None, **pinned}), hosts=2)
    of = workload(two, runtime_class_name=two.status.runtime_class_name)
    serving = host(of, 0, states={"sandbox-gate": ended(), "gym-host": running()}, phase="Running")
    pods = (evaluator(of, states={"agent-evaluate": running()}, phase="Running"), serving)
    heard = progress(hosts=2, hosts_ready=1, message="1 of 2 gym hosts take rollouts")
    decision = decide(observe(two, of, pods=pods, progress=heard, standing=HOLDS), NOW)
    sandbox = condition_of(decision, "SandboxReady")
    assert (sandbox["status"], sandbox["reason"]) == ("True", "SomeHostsReady")
    assert ("CreateTogether mcqa-host-1-1" in kinds(decision)) is (pinned is PINNED)
    assert ("gets no further pods" in sandbox["message"]) is (pinned is not PINNED)
    assert not holds(decision, "Failed")


@pytest.mark.parametrize(
    ("pinned", "isolation"), [(PINNED, "Kernel"), (CONTAINER, "ContainerOnly"), (PINNED, "ContainerOnly")]
)
def test_a_sandbox_as_the_settings_name_it_or_a_better_one_gets_its_pods(pinned, isolation):
    of = installation(sandbox={"isolation": isolation})
    assert kinds(decide(new(job(status=pinned), installation=of, standing=HOLDS), NOW)) != []


def test_the_policy_model_is_shown_for_the_table():
    assert decided().status["model"] == "org/Name-3.2"


def test_code_from_a_fileset_never_runs_beside_the_key_whatever_a_status_says():
    """The placement is read from the status, which the operator alone should write."""
    forged = {"placement": "Colocated", "isolation": "ContainerOnly"}
    decision = decide(new(job(status=forged, **FILESET)), NOW)
    assert decision.actions == ()
    refused = condition_of(decision, "Failed")
    assert refused["reason"] == "EnvironmentNeedsSandbox"
    assert "'mine'" in refused["message"] and "agentevaljobs/status" in refused["message"]
    assert not holds(decide(new(job(status=forged)), NOW), "Failed")
