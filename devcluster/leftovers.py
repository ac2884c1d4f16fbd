"""Whatever a cluster leaves behind when it is killed at any moment, and the safe way to be rid of it.

Nothing here trusts a record alone: after a crash there may be shims without containerd, mounts without processes, or
leases without pods. Everything is found by something that belongs to this program only: the mark in the environment,
the cgroup, the folders, the names of the bridges and of the pod network.
"""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from . import cgroups, containerd, firewall, mounts, network, paths, processes, report

CNI_RESULTS = Path("/var/lib/cni/results")
CONTAINER_LOGS = Path("/var/log/containers")
# These two have the same place for every containerd and every kubelet of a machine.
SHIM_SOCKETS = Path("/run/containerd/s")
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
RIVALS = {"kubelet", "kube-proxy", "kube-router", "k3s", "k3s-server", "k0s", "rke2"}
# In the order in which they can be missed.
STOP_ORDER = (
    "kubelet",
    "kube-proxy",
    "kube-router",
    "coredns",
    "volumes",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-apiserver",
    "etcd",
)


def refuse_rivals() -> None:
    """Another kubelet would fight over pods, and another kube-proxy over firewall chains of the same names."""
    ours = {who.pid for who in processes.marked()}
    here = os.stat("/proc/self/ns/net").st_ino
    for pid in processes.all_pids():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            same_network = os.stat(f"/proc/{pid}/ns/net").st_ino == here
        except OSError:
            continue
        if name in RIVALS and same_network and pid not in ours:
            raise report.DevclusterError(
                f"{name} (pid {pid}) of another cluster runs on this machine: stop that cluster first"
            )


def clear() -> None:
    """Leaves images, certificates and logs; ends and removes all else, API objects and volumes included."""
    stop_daemons()
    kill_pods()
    mounts.unmount_below(containerd.state(), containerd.root(), paths.kubelet_dir(), containerd.runsc_root())
    network.remove_pods()
    firewall.remove()
    cgroups.remove()
    _remove_files()


def stop_daemons() -> None:
    for name in STOP_ORDER:
        processes.stop(name)
    kill_pods()  # while containerd can still note it
    processes.stop("containerd")
    processes.end(processes.marked(), seconds=5)


def kill_pods() -> None:
    """All processes in the pods' cgroup; repeatedly, since one that dies may have just forked."""
    deadline = time.monotonic() + 20
    while found := cgroups.members():
        if time.monotonic() > deadline:
            raise report.DevclusterError(f"processes of pods do not end: {[who.pid for who in found]}")
        for who in found:
            try:
                os.kill(who.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.1)


def _remove_files() -> None:
    runtime = containerd.root() / "io.containerd.grpc.v1.cri"
    for folder in (
        containerd.state(),
        containerd.leases(),
        containerd.runsc_root(),
        runtime / "containers",
        runtime / "sandboxes",
        paths.kubelet_dir(),
        paths.volumes_dir(),
        paths.state_dir() / "etcd",
        paths.log_dir() / "pods",
    ):
        _remove_tree(folder)
    paths.containerd_socket().unlink(missing_ok=True)
    Path(f"{paths.containerd_socket()}.ttrpc").unlink(missing_ok=True)
    for result in CNI_RESULTS.glob("*-*"):  # the loopback's have the same name for every containerd
        if str(containerd.state()) in result.read_text(errors="replace"):
            result.unlink()
    _remove_dead_sockets(Path("/proc/net/unix").read_text())
    DEVICE_PLUGINS.joinpath("kubelet.sock").unlink(missing_ok=True)
    for folder in (DEVICE_PLUGINS, DEVICE_PLUGINS.parent):
        with contextlib.suppress(OSError):  # another kubelet's, or not there
            folder.rmdir()
    for link in CONTAINER_LOGS.glob("*.log"):
        if link.is_symlink() and Path(os.readlink(link)).is_relative_to(paths.log_dir()):
            link.unlink()


def _remove_dead_sockets(in_use: str) -> None:
    """Of killed shims; those of another containerd's live shims are in use."""
    alive = {line.split()[-1] for line in in_use.splitlines()}
    for socket in SHIM_SOCKETS.glob("*"):
        if str(socket) not in alive:
            socket.unlink()


def _remove_tree(folder: Path) -> None:
    if folder.is_symlink():
        raise report.DevclusterError(
            f"{folder} is a link; devcluster only removes a folder of its own: remove the link"
        )
    if folder.exists():
        shutil.rmtree(folder)


def purge() -> None:
    """After `clear`: the state folder as well, with images and certificates. The cache stays."""
    mounts.unmount_below(paths.state_dir())
    _remove_tree(paths.state_dir())
