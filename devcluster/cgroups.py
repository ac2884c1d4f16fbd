"""The cgroup above all pods, in every hierarchy the machine has (one with cgroup v2, a dozen with v1)."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from . import processes, report
from .settings import CGROUP

CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


def mounted(mounts: str) -> list[tuple[Path, str]]:
    """Where hierarchies are mounted, and the file system's type."""
    rows = [line.split() for line in mounts.splitlines()]
    return [(Path(row[1]), row[2]) for row in rows if row[2] in ("cgroup", "cgroup2")]


def in_use(mounts: str) -> list[tuple[Path, str]]:
    """Without the empty v2 hierarchy that may be mounted beside v1."""
    found = mounted(mounts)
    return [row for row in found if row[1] == "cgroup"] or found


def _folders() -> list[Path]:
    return [mount / CGROUP for mount, _ in mounted(Path("/proc/mounts").read_text())]


def ensure() -> None:
    found = in_use(Path("/proc/mounts").read_text())
    if not found:
        raise report.DevclusterError("no cgroup file system is mounted below /sys/fs/cgroup: the kubelet needs one")
    for mount, kind in found:
        (mount / CGROUP).mkdir(exist_ok=True)
        if kind == "cgroup2":
            _delegate(mount)
            _delegate(mount / CGROUP)
        elif (mount / "cpuset.cpus").exists():
            for name in ("cpuset.cpus", "cpuset.mems"):  # a new one is empty, and then nothing can run in it
                (mount / CGROUP / name).write_text((mount / name).read_text())


def _delegate(folder: Path) -> None:
    offered = (folder / "cgroup.controllers").read_text().split()
    enabled = (folder / "cgroup.subtree_control").read_text().split()
    for controller in CONTROLLERS:
        if controller in offered and controller not in enabled:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def members() -> list[processes.Identity]:
    pids = set()
    for folder in _nested():
        with contextlib.suppress(OSError):
            pids.update(map(int, (folder / "cgroup.procs").read_text().split()))
    return [who for pid in pids if (who := processes.identify(pid))]


def remove() -> None:
    for folder in _nested():
        with contextlib.suppress(OSError):  # one that is still busy is used again by the next start
            folder.rmdir()


def _nested() -> Iterator[Path]:
    """Every folder, the inner ones first. Those that vanish meanwhile, as a pod's do when it ends, are left out."""
    for folder in _folders():
        for path, _, _ in os.walk(folder, topdown=False):
            yield Path(path)
