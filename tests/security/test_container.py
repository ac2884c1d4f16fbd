"""The container's walls, tried from inside."""

from __future__ import annotations

from security.scenarios import LAST, HostileRun
from support.job_watch import condition

REFUSED = {"EROFS", "EACCES", "EPERM", "ENOENT"}


def test_nothing_outside_the_scratch_space_is_written(attacked: HostileRun) -> None:
    assert set(attacked.saw("write-the-root-filesystem").values()) <= REFUSED


def test_nobody_becomes_root(attacked: HostileRun) -> None:
    saw = attacked.saw("become-root")
    assert (saw["uid"], saw["setuid"], saw["setgid"], saw["chroot"]) == (1000, "EPERM", "EPERM", "EPERM")
    assert {int(mask, 16) for mask in saw["capabilities"]} == {0}
    assert saw["su"] != "0"


def test_nothing_is_mounted_and_no_namespace_left(attacked: HostileRun) -> None:
    saw = attacked.saw("mount-and-namespaces")
    assert "done" not in saw.values(), saw


def test_neither_kernel_nor_node_is_steered_or_read(attacked: HostileRun) -> None:
    saw = attacked.saw("kernel-and-node")
    assert "written" not in {saw["/proc/sys/kernel/core_pattern"], saw["/proc/sysrq-trigger"]}
    assert saw["/proc/kcore"] == saw["/dev/mem"] == saw["/dev/vda"] == "read 0 bytes"
    assert saw["/run/containerd/containerd.sock"] == "read 0 bytes"


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
