"""Where jobs run: every combination of settings and cluster, and what refuses a job."""

import pytest

from nhx_gym_operator.api.conditions import AcceptedReason
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.inputs import Inputs, Missing
from support.controller_values import NOW, condition_of, holds, installation, job, new

FILESET = {"gym": {"environment": {"fileSet": {"name": "mine"}}}}
DENIED = Missing(AcceptedReason.ACCESS_DENIED, "the operator may not get runtimeclasses")


def decided(*, mode="Auto", isolation="Kernel", runtime_class=True, **changes):
    settings = {"sandbox": {"mode": mode, "isolation": isolation}}
    return decide(
        new(job(**changes), installation=installation(**settings), runtime_class=runtime_class, inputs=Inputs()), NOW
    )


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


def test_a_pinned_placement_stays_when_the_settings_change():
    pinned = job(status={"placement": "Colocated", "isolation": "ContainerOnly"})
    decision = decide(new(pinned, installation=installation(sandbox={"mode": "Required"})), NOW)
    assert decision.status["placement"] == "Colocated"
    assert not holds(decision, "Failed")


def test_the_policy_model_is_shown_for_the_table():
    assert decided().status["model"] == "org/Name-3.2"
