"""The whole cluster: bringing it up from whatever state it is in, and taking it down."""

import contextlib
import fcntl
import os
import platform
import time

from . import (
    addons,
    cgroups,
    containerd,
    control_plane,
    kubectl,
    leftovers,
    modules,
    mounts,
    network,
    node,
    packages,
    paths,
    pause,
    pki,
    processes,
    report,
)
from .beside import Beside

LOCK_SECONDS = 3600  # another `up` may be building


@contextlib.contextmanager
def exclusively():
    """One `up` or `down` at a time; the kernel lets go of the lock when the process ends, however it ends."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        raise report.DevclusterError(
            "devcluster needs Linux and root: it starts a kubelet, mounts, bridges and firewall rules"
        )
    paths.run_dir().mkdir(parents=True, exist_ok=True)
    with (paths.run_dir() / "lock").open("w") as lock:
        _take(lock)
        yield


def _take(lock) -> None:
    deadline, told = time.monotonic() + LOCK_SECONDS, False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not told:
                report.say("waiting for another devcluster command that is at work")
                told = True
            if time.monotonic() > deadline:
                raise report.DevclusterError(f"another devcluster command holds {lock.name} for too long") from None
            time.sleep(0.5)


def is_busy() -> bool:
    """Whether an `up` or `down` is at work."""
    try:
        with (paths.run_dir() / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never used, or another user's
        return False
    return False


def up() -> None:
    with exclusively():
        provide_programs()
        leftovers.refuse_rivals()
        if not can_continue():
            start_afresh()
        changed = start_all()
    report.say(f"cluster {'is ready' if changed else 'was ready already'}: export KUBECONFIG={paths.kubeconfig()}")


def provide_programs() -> None:
    packages.install_missing()
    kubectl.fetch_missing()
    modules.build_missing()
    pause.build_missing()
    kubectl.link_tools()


def provide_programs_and_images() -> None:
    """Side by side: much of an image's time is downloads and programs of one thread."""
    packages.install_missing()  # both want the same, and only one may have apt-get
    with Beside("images", "build") as images:
        provide_programs()
        images.show()


def can_continue() -> bool:
    """API objects live exactly as long as the etcd process that holds them."""
    return pki.is_valid() and processes.is_current(control_plane.etcd())


def start_afresh() -> None:
    with report.step("removing what an earlier cluster may have left (images stay)"):
        leftovers.clear()
    paths.state_dir().mkdir(parents=True, exist_ok=True, mode=0o711)
    if not pki.is_valid():
        with report.step("creating certificates"):
            pki.create()
    _keep_previous_logs()


def _keep_previous_logs() -> None:
    for log in paths.log_dir().glob("*.log"):
        log.replace(log.with_suffix(".previous"))


def start_all() -> bool:
    network.ensure()
    pki.ensure_admin()
    mounts.share_kubelet_dir()
    cgroups.ensure()
    paths.volumes_dir().mkdir(parents=True, exist_ok=True)
    started = [processes.ensure(control_plane.etcd())]
    started += [_start_containerd()]
    started += [processes.ensure(control_plane.api_server())]
    addons.apply()
    for daemon in (control_plane.controller_manager(), control_plane.scheduler(), node.kubelet()):
        started.append(processes.ensure(daemon))
    report.wait_until("the node to register", addons.node_is_registered, 60, node.kubelet().log)
    for daemon in (node.kube_proxy(), node.kube_router(), node.coredns(), node.volumes()):
        started.append(processes.ensure(daemon))
    addons.wait_until_ready(node.kubelet().log)
    return any(started)


def _start_containerd() -> bool:
    # Until a kubelet was started, what containerd knows is of a cluster that is gone. The kubelet would clean up in
    # the end, but it takes its time, and it stumbles over namespaces and mounts that no longer exist.
    stale = not processes.recorded("kubelet")
    started = processes.ensure(containerd.daemon())
    if stale and containerd.remove_containers():
        processes.stop("containerd")
        with report.step("starting containerd again, without the last cluster's pods"):
            processes.start(containerd.daemon())
    containerd.import_pause_image()
    return started


def down(purge: bool) -> None:
    with exclusively():
        if not paths.state_dir().exists() and not processes.marked():
            report.say("there is no cluster to stop")
            return
        leftovers.refuse_rivals()  # the firewall's chains might be theirs
        with report.step("stopping the cluster"):
            leftovers.clear()
            pki.remove_admin()
            network.remove()
        if purge:
            leftovers.purge()
            report.say(f"{paths.state_dir()} is gone; binaries stay in {paths.cache_dir()}")
        else:
            report.say("loaded images, certificates and logs stay; `python3 -m devcluster down --purge` removes them")
