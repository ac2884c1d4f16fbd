"""What a sandbox holds, what it runs on, and what happens where its network is not fenced in."""

from __future__ import annotations

import pytest

from e2e.installations import GVISOR, OPEN_NETWORK
from e2e.runs import Run
from nhx_gym_operator.api.wire.endpoints import HOST_PORT
from support import cluster, stuck
from support.clock import seconds_between
from support.job_watch import condition, is_true

GATE_SECONDS = 300
"""The gate's own 60 s, and two pods that start, perhaps on a busy machine."""
TOKENS = "/var/run/secrets/nhx/tokens"


def test_a_gvisor_hosts_kernel_says_so_and_is_not_the_nodes(mcqa_gvisor: Run) -> None:
    node = _node_of(mcqa_gvisor)
    assert "gVisor" in mcqa_gvisor.status["ran"]["hostKernel"]
    assert node not in mcqa_gvisor.status["ran"]["hostKernel"]
    assert "gVisor" in mcqa_gvisor.facts["kernel"]
    assert node not in mcqa_gvisor.facts["kernel"]
    assert mcqa_gvisor.pod("gym-host")["spec"]["runtimeClassName"] == "gvisor"


def test_a_runc_hosts_kernel_is_the_nodes(mcqa_runc: Run) -> None:
    assert _node_of(mcqa_runc) in mcqa_runc.status["ran"]["hostKernel"]
    assert "gVisor" not in mcqa_runc.status["ran"]["hostKernel"]
    assert "runtimeClassName" not in mcqa_runc.pod("gym-host")["spec"]


def test_a_host_mounts_and_is_given_nothing_but_its_own_token(mcqa_gvisor: Run) -> None:
    pod = mcqa_gvisor.pod("gym-host")
    spec = pod["spec"]
    secrets = [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume]
    assert len(secrets) == 1 and secrets[0].startswith("mcqa-host-0-")
    assert all("projected" not in volume and "persistentVolumeClaim" not in volume for volume in spec["volumes"])
    assert spec["automountServiceAccountToken"] is False
    for container in [*spec["initContainers"], *spec["containers"]]:
        for variable in container.get("env", []):
            assert "secretKeyRef" not in variable.get("valueFrom", {}), variable
            assert "policy-key" not in variable.get("value", ""), variable


def test_inside_a_running_host_only_its_own_token_is_found(mcqa_gvisor: Run) -> None:
    facts = mcqa_gvisor.facts
    assert {file.rpartition("/")[2] for file in facts["secret files"]} == {"host"}
    assert all(file.startswith(TOKENS) for file in facts["secret files"])
    assert facts["service account"] == []
    assert facts["model key in host"] == []


@pytest.mark.parametrize("run", ["mcqa_gvisor", "replaced_children"], indirect=True)
def test_a_running_host_has_one_port_that_others_reach(run: Run) -> None:
    """Gym's servers and Ray keep to loopback."""
    assert run.facts["listening"].others == {HOST_PORT}
    assert len(run.facts["listening"].itself) > 3


def test_the_search_for_the_key_finds_what_is_there(mcqa_gvisor: Run) -> None:
    facts = mcqa_gvisor.facts
    assert any(place.startswith("/proc/") for place in facts["token in host"])
    assert any(TOKENS.removeprefix("/var") in place for place in facts["token in host"])
    assert any("nhx/models/policy" in place for place in facts["model key in evaluator"])
    assert not any(place.startswith("/proc/") for place in facts["model key in evaluator"])
    assert facts["service account of evaluator"] == []


def test_the_service_publishes_addresses_that_are_not_ready(mcqa_gvisor: Run) -> None:
    service = mcqa_gvisor.facts["service"]
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["namespace"] == GVISOR.jobs


def test_a_gate_that_reaches_what_it_must_not_stops_the_host(open_network: Run) -> None:
    sandbox = condition(open_network.job, "SandboxReady")
    assert (sandbox["status"], sandbox["reason"]) == ("False", "SandboxOpen")
    failed = condition(open_network.job, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "SandboxOpen")
    for target in ("evaluator-canary", "kubernetes-api", "kubelet"):
        assert target in failed["message"], failed["message"]
    stuck.assert_seen("An init container fails", open_network.job)
    assert seconds_between(open_network.status["startTime"], open_network.status["completionTime"]) < GATE_SECONDS
    gate, *_ = open_network.pod("gym-host")["status"]["initContainerStatuses"]
    assert gate["state"]["terminated"]["exitCode"] != 0


def test_no_environment_code_ran_behind_an_open_gate(open_network: Run) -> None:
    host, *_ = open_network.pod("gym-host")["status"]["containerStatuses"]
    assert "running" not in host["state"] and not host.get("containerID")
    assert not any(is_true(state, "SandboxReady") or is_true(state, "Running") for state in open_network.states)


def test_the_policies_of_the_open_job_were_the_usual_ones(open_network: Run) -> None:
    """Only the foreign policy beside them made the difference."""
    names = {entry["metadata"]["name"] for entry in cluster.listed("networkpolicies", OPEN_NETWORK)}
    assert {"open-host", "open-evaluator", "let-hosts-out"} <= names


def _node_of(run: Run) -> str:
    node = cluster.get("node", run.pod("gym-host")["spec"]["nodeName"])
    return node["status"]["nodeInfo"]["kernelVersion"]
