"""Floods, each in a pod as the operator builds hosts: the pod's own limits end them, and the node does not notice."""

from __future__ import annotations

import signal

import pytest

from security.scenarios import FLOOD_DISK_BYTES, FLOOD_MEMORY_BYTES, RUNTIMES, Flood
from support import cluster

RUNTIME = pytest.mark.parametrize("runtime", sorted(RUNTIMES))
KILLED = 128 + signal.SIGKILL
POD_PIDS_LIMIT = 1024
"""Of the kubelet of the tests' cluster (devcluster/node.py). Elsewhere it is the administrator's."""


@RUNTIME
def test_a_fork_bomb_takes_no_more_of_the_nodes_processes_than_a_pod_may(
    floods: dict[str, dict[str, Flood]], runtime: str
) -> None:
    """Under gVisor most of what a bomb starts is none of the node's."""
    flood = floods[runtime]["fork"]
    assert max((said.get("tasks", 0) for said in flood.said), default=0) > 10, f"it never began: {flood.pod['status']}"
    assert 10 < flood.node_tasks <= POD_PIDS_LIMIT


def test_under_runc_a_fork_bomb_meets_the_pods_limit(floods: dict[str, dict[str, Flood]]) -> None:
    saw = floods["runc"]["fork"].said[-1]["saw"]
    assert saw["refused"] and saw["tasks"] < POD_PIDS_LIMIT


@RUNTIME
def test_a_memory_flood_ends_its_own_pod(floods: dict[str, dict[str, Flood]], runtime: str) -> None:
    flood = floods[runtime]["memory"]
    assert not flood.survived
    assert flood.pod["status"]["phase"] == "Failed"
    (container,) = flood.pod["status"]["containerStatuses"]
    # Under gVisor it is the kernel of its own that is ended, of which the container's status need not tell why.
    # containerd at times misses the kernel's word, and then tells the signal alone.
    assert container["state"]["terminated"]["exitCode"] == KILLED or runtime == "gvisor", flood.pod["status"]
    assert FLOOD_MEMORY_BYTES / 2 <= max((said.get("bytes", 0) for said in flood.said), default=0) <= FLOOD_MEMORY_BYTES


@RUNTIME
def test_a_disk_flood_is_evicted_by_name(floods: dict[str, dict[str, Flood]], runtime: str) -> None:
    flood = floods[runtime]["disk"]
    words = _evicted(flood)
    assert "ephemeral" in words or "emptydir" in words
    assert max((said.get("bytes", 0) for said in flood.said), default=0) <= 2 * FLOOD_DISK_BYTES


@RUNTIME
def test_a_flood_of_output_is_evicted_by_name(floods: dict[str, dict[str, Flood]], runtime: str) -> None:
    """What a pod prints is kept by its node, and counts as what it writes. This one writes nothing else."""
    assert "ephemeral" in _evicted(floods[runtime]["output"])


def _evicted(flood: Flood) -> str:
    """Why its node evicted it, in small letters."""
    assert not flood.survived
    status = flood.pod["status"]
    assert (status["phase"], status.get("reason")) == ("Failed", "Evicted"), status
    return status["message"].lower()


def test_the_node_is_well_afterwards(floods: dict[str, dict[str, Flood]]) -> None:
    conditions = cluster.get("node", "node")["status"]["conditions"]
    found = {entry["type"]: entry["status"] for entry in conditions}
    assert found["Ready"] == "True"
    assert {found[name] for name in ("MemoryPressure", "DiskPressure", "PIDPressure")} == {"False"}
