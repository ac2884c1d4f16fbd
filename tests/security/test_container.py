"""The container's walls, tried from inside."""

from __future__ import annotations

import re

from e2e.installations import GVISOR
from security.scenarios import LAST, HostileRun
from support import cluster
from support.job_watch import condition

SCRATCH = ("/tmp", "/job", "/dev/shm")
OWN = (
    "/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/secrets/nhx",
    "/var/run/secrets/nhx",
)  # fmt: skip
"""What every container has, and the host's own token."""
RUNTIMES_NAMES = re.compile("containerd|docker|shim|crio|podman|kubelet")
REFUSED = {"EROFS", "EACCES", "EPERM", "ENOENT"}


def test_nothing_outside_the_scratch_space_is_written(attacked: HostileRun) -> None:
    assert set(attacked.saw("write-the-root-filesystem").values()) <= REFUSED


def test_nobody_becomes_root(attacked: HostileRun) -> None:
    saw = attacked.saw("become-root")
    assert (saw["uid"], saw["setuid"], saw["setgid"], saw["chroot"]) == (1000, "EPERM", "EPERM", "EPERM")
    assert {int(mask, 16) for mask in saw["capabilities"]} == {0}
    assert saw["su"] != "0"
    if attacked.status.get("runtimeClassName") is None:
        # gVisor does not show it.
        assert saw["no new privileges"] == ["1"]


def test_nothing_is_mounted_and_no_namespace_left(attacked: HostileRun) -> None:
    saw = attacked.saw("mount-and-namespaces")
    assert "done" not in saw.values(), saw


def test_neither_kernel_nor_node_is_steered_or_read(attacked: HostileRun) -> None:
    saw = attacked.saw("kernel-and-node")
    steering = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper")
    assert {saw[place] for place in steering} <= REFUSED
    reading = ("/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda")
    assert {place: saw[place] for place in reading} == dict.fromkeys(reading, "read 0 bytes")


def test_no_socket_leads_out_and_nothing_of_the_node_is_mounted(attacked: HostileRun) -> None:
    saw = attacked.saw("runtime-socket")
    assert saw["folders"] > 20, "the search did not see anything"
    assert saw["sockets"].get(saw["own"]) == "connected", "the search did not find what is there"
    assert [path for path in saw["sockets"] if not path.startswith(SCRATCH)] == []
    assert [name for name in saw["abstract"] if RUNTIMES_NAMES.search(name)] == []
    assert {"/", "/tmp", "/job/work"} <= set(saw["mounts"]), "the mounts were not read"
    assert [place for place in saw["mounts"] if place != "/" and not place.startswith((*SCRATCH, *OWN))] == []


def test_under_runc_the_containers_init_takes_no_signal_from_its_children(hostile: dict[str, HostileRun]) -> None:
    assert hostile["runc"].saw("kill-pid-1")["init lives"] is True
    assert hostile["runc"].status["phase"] == "Succeeded"


def test_a_host_that_ends_itself_is_named_and_what_was_recorded_stays(hostile: dict[str, HostileRun]) -> None:
    """Under gVisor a child may kill the init: its own host is all that ends."""
    run = hostile["gvisor"]
    lost = condition(run.facts["lost"], "SandboxReady")
    assert (lost["status"], lost["reason"]) == ("False", "HostLost")
    assert run.status["phase"] == "Cancelled"
    assert {"network", "forgery", "container", "log"} <= run.rows.keys()
    assert LAST not in run.rows


def test_the_operator_has_no_shell(hostile: dict[str, HostileRun]) -> None:
    """Of whichever jobs have run, their operator is up."""
    (pod,) = [
        each
        for each in cluster.listed("pods", GVISOR.namespace, {"app.kubernetes.io/instance": GVISOR.release})
        if each["status"]["phase"] == "Running"
    ]
    name = pod["metadata"]["name"]
    for shell in ("sh", "/bin/sh", "bash", "dash"):
        done = cluster.execute(name, "operator", GVISOR.namespace, [shell, "-c", "true"])
        assert done.code and ("not found" in done.stderr or "no such file" in done.stderr), done.stderr
    answer = cluster.execute(name, "operator", GVISOR.namespace, ["python", "-c", "print(7)"])
    assert (answer.code, answer.stdout) == (0, "7\n"), "nothing at all runs there"
