"""The local cluster after the worst: killed as a whole, in part, or while it starts; and what `down` takes away.

What is on the cluster is gone afterwards, but for its images, so these tests run by themselves: `make test-repair`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devcluster import cgroups, containerd, leftovers, mounts, network, paths, processes, status
from devcluster.processes import Identity
from devcluster.settings import NODE_NAME, PAUSE_IMAGE, ROUTING_TABLE
from support import cluster
from support.cluster import ROOT, Object

pytestmark = pytest.mark.nightly

UP_SECONDS = 180
"""From nothing to a Ready node and back: see devcluster/README.md."""
POD_SECONDS = 90
GONE_SECONDS = 20
OURS = ("198.18.", "198.19.", *network.BRIDGES)
DEVCLUSTER = ["python3", "-m", "devcluster"]
BYSTANDER = "nhx-bystander"
_SERVE = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
while True:
    listener.accept()
"""

EVERYWHERE = {"links", "routes", "rules", "mounts", "sockets", "firewall", "sets", "processes"}
"""Where a cluster with pods and a policy is to be seen."""
FENCE = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "fence", "namespace": "default"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]},
}


@pytest.fixture(scope="module", autouse=True)
def leaves_a_cluster() -> Iterator[None]:
    yield
    up()


@pytest.fixture
def pods() -> dict[str, Object]:
    """A Ready one of each runtime, on a cluster that is up."""
    up()
    return run_pods("before")


@dataclass(frozen=True)
class Bystander:
    """What looks like the cluster's and is another's: a process and its socket, a mount, a network namespace, a route
    and a chain of the firewall."""

    process: subprocess.Popen[bytes]
    socket: Path
    mounted: Path

    def is_well(self) -> bool:
        assert self.process.poll() is None
        with socket.socket(socket.AF_UNIX) as asker:
            asker.connect(str(self.socket))
        return (
            self.mounted.joinpath("file").read_text() == "another's"
            and BYSTANDER in said("ip", "netns", "list")
            and "198.51.100.0/24" in said("ip", "route")
            and f"-A {BYSTANDER} -j RETURN" in said("iptables", "-w", "-S")
        )


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[Bystander]:
    program, mounted = tmp_path / "etcd", tmp_path / "kubelet"
    program.symlink_to(os.path.realpath(sys.executable))
    mounted.mkdir()
    leftovers.SHIM_SOCKETS.mkdir(parents=True, exist_ok=True)
    place = leftovers.SHIM_SOCKETS / BYSTANDER
    undo = [
        ["iptables", "-w", "-F", BYSTANDER],
        ["iptables", "-w", "-X", BYSTANDER],
        ["ip", "route", "delete", "unreachable", "198.51.100.0/24"],
        ["ip", "netns", "delete", BYSTANDER],
        ["umount", str(mounted)],
    ]
    with subprocess.Popen([program, "-c", _SERVE, place]) as process:
        try:
            said("mount", "-t", "tmpfs", "tmpfs", str(mounted))
            (mounted / "file").write_text("another's")
            said("ip", "netns", "add", BYSTANDER)
            said("ip", "route", "add", "unreachable", "198.51.100.0/24")
            said("iptables", "-w", "-N", BYSTANDER)
            said("iptables", "-w", "-A", BYSTANDER, "-j", "RETURN")
            until(place.is_socket, "the bystander to listen", GONE_SECONDS)
            yield Bystander(process, place, mounted)
        finally:
            process.kill()
            for command in undo:
                subprocess.run(command, capture_output=True)
            place.unlink(missing_ok=True)


def daemons() -> list[Identity]:
    """By the records that were made of them."""
    return [who for daemon in status.daemons() if (who := processes.identity(daemon.name))]


def everything() -> list[Identity]:
    """Daemons, the shims of pods, and what runs in pods."""
    return [*daemons(), *processes.marked(), *cgroups.members()]


def all_but_etcd() -> list[Identity]:
    kept = processes.identity("etcd")
    return [who for who in daemons() if who != kept]


@pytest.mark.parametrize("victims", [daemons, everything], ids=lambda victims: victims.__name__)
def test_a_cluster_that_was_killed_is_an_empty_one_in_which_pods_run(
    victims: Callable[[], list[Identity]], pods: dict[str, Object], bystander: Bystander
) -> None:
    of_pods, mounted, sockets = cgroups.members(), own_mounts(), shim_sockets()
    kill(victims())
    assert any(map(is_network, mounted)) and any("/volumes/" in point for point in mounted), (
        "there is nothing to repair"
    )
    assert own_mounts() == mounted and shim_sockets() == sockets and paths.containerd_socket().exists()

    up()

    assert of_pods and not [who for who in of_pods if who.is_alive()]
    assert not set(own_mounts()) & {point for point in mounted if is_network(point) or "/volumes/" in point}
    assert not set(shim_sockets()) & set(sockets)
    assert cluster.listed("pods") == []
    assert run_pods("after").keys() == pods.keys()
    assert bystander.is_well()


def test_what_etcd_holds_and_the_pods_outlive_all_other_processes(pods: dict[str, Object]) -> None:
    of_pods = cgroups.members()
    kill(all_but_etcd())
    up()
    until(lambda: containers(ready_pods()) == containers(pods), "the pods to be Ready as they were", POD_SECONDS)
    assert of_pods and all(who.is_alive() for who in of_pods)


def test_a_start_that_is_killed_midway_is_repaired(pods: dict[str, Object]) -> None:
    kill(everything())
    with subprocess.Popen([*DEVCLUSTER, "up"], cwd=ROOT, stdout=subprocess.DEVNULL) as start:
        until(lambda: processes.is_alive("kubelet"), "the kubelet to be started", UP_SECONDS)
        start.kill()
    kill(everything())
    up()
    assert run_pods("after").keys() == pods.keys()


def test_a_second_up_changes_nothing(pods: dict[str, Object]) -> None:
    running, found = daemons(), machine()
    assert "was ready already" in up()
    assert daemons() == running
    # The policy controller writes its rules anew every minute, under other names.
    by_itself = {"firewall": [], "sets": []}
    assert machine() | by_itself == found | by_itself
    assert containers(ready_pods()) == containers(pods)


def test_down_takes_away_exactly_what_up_brought_and_a_second_one_changes_nothing(
    pods: dict[str, Object], bystander: Bystander
) -> None:
    cluster.apply(FENCE)
    until(lambda: holds_ours(machine()) == EVERYWHERE, "the policy to be in force", POD_SECONDS)

    settings = json.loads((paths.run_dir() / "sysctl-before.json").read_text())
    assert settings.keys() == network.SETTINGS.keys()

    devcluster("down")
    without = machine()
    assert {name: (network.SYSCTL / name).read_text().strip() for name in settings} == settings
    assert holds_ours(without) == set() and not paths.kubeconfig().exists()
    assert bystander.is_well()

    devcluster("down")
    assert machine() == without

    up()
    run_pods("after")
    devcluster("down")
    assert machine() == without
    assert bystander.is_well()


def up() -> str:
    """The node is Ready when it returns."""
    output = devcluster("up")
    (ready,) = [item for item in cluster.get("node", NODE_NAME)["status"]["conditions"] if item["type"] == "Ready"]
    assert ready["status"] == "True", ready
    return output


def devcluster(command: str) -> str:
    done = subprocess.run([*DEVCLUSTER, command], cwd=ROOT, capture_output=True, text=True, timeout=UP_SECONDS)
    assert done.returncode == 0, f"devcluster {command}: {done.stdout}{done.stderr}"
    return done.stdout


def run_pods(name: str) -> dict[str, Object]:
    """Makes a pod under each runtime, with a volume in memory, and waits for them to be Ready."""
    cluster.kubectl("delete", "pods", "--all", "--namespace=default", "--grace-period=1")
    for runtime in ("runc", "gvisor"):
        container = {"name": "pause", "image": PAUSE_IMAGE, "imagePullPolicy": "Never"}
        container["volumeMounts"] = [{"name": "memory", "mountPath": "/memory"}]
        spec = {"containers": [container], "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}]}
        spec |= {"runtimeClassName": runtime} if runtime == "gvisor" else {}
        metadata = {"name": f"{name}-{runtime}", "namespace": "default", "labels": {"runtime": runtime}}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    until(lambda: len(ready_pods()) == 2, "two Ready pods", POD_SECONDS)
    return ready_pods()


def ready_pods() -> dict[str, Object]:
    """By runtime."""
    return {
        pod["metadata"]["labels"]["runtime"]: pod
        for pod in cluster.listed("pods", "default")
        if any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))
    }


def containers(found: dict[str, Object]) -> dict[str, list[str]]:
    """Their ids, which a container that was started again has others of."""
    return {
        runtime: [each["containerID"] for each in pod["status"]["containerStatuses"]] for runtime, pod in found.items()
    }


def kill(those: Iterable[Identity]) -> None:
    victims = list(those)
    assert victims, "there is nobody to kill"
    for who in victims:
        if who.is_alive():
            os.kill(who.pid, signal.SIGKILL)
    until(lambda: not any(who.is_alive() for who in victims), "the killed processes to be gone", GONE_SECONDS)


def until(holds: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def own_mounts() -> list[str]:
    return mounts.below([paths.state_dir(), paths.run_dir()], Path("/proc/self/mountinfo").read_text())


def is_network(point: str) -> bool:
    """Whether a network namespace of a pod is kept there."""
    return Path(point).is_relative_to(containerd.state()) and "/netns/" in point


def shim_sockets() -> list[str]:
    return sorted(path.name for path in leftovers.SHIM_SOCKETS.glob("*") if path.name != BYSTANDER)


def machine() -> dict[str, list[str]]:
    """All that a cluster changes of a machine, in the words of the programs that show it."""
    rules = [line for family in ("iptables-save", "ip6tables-save") for line in said(family).splitlines()]
    return {
        "links": sorted(os.listdir("/sys/class/net")),
        "routes": sorted(said("ip", "route", "show", "table", "all").splitlines()),
        "rules": said("ip", "rule").splitlines(),
        "network namespaces": sorted(said("ip", "netns", "list").splitlines()),
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "sockets": shim_sockets(),
        "firewall": sorted(rule for rule in rules if rule.startswith("-A ")),
        "sets": sorted(said("ipset", "list", "-name").split()),
        "sysctls": [(network.SYSCTL / name).read_text() for name in network.SETTINGS],
        "processes": sorted(f"{who.pid}" for who in (*processes.marked(), *cgroups.members())),
    }


def holds_ours(found: dict[str, list[str]]) -> set[str]:
    """Where something of the cluster is to be seen."""
    words = {
        "links": tuple(network.BRIDGES),
        "routes": OURS,
        "rules": (ROUTING_TABLE,),
        "mounts": (str(paths.state_dir()), str(paths.run_dir())),
        "firewall": ("KUBE-", "kube-router", *OURS),
        "sets": ("kube-router", "KUBE-"),
    }
    seen = {name for name, marks in words.items() if any(mark in line for line in found[name] for mark in marks)}
    return seen | {name for name in ("sockets", "processes") if found[name]}
