"""What a host says about itself: versions, kernel, and whether it ran out of memory."""

from __future__ import annotations

import ctypes
import platform
from importlib import metadata
from pathlib import Path

from ..api.wire.reports import Kernel

_DISTRIBUTIONS = ("nemo-gym", "nemo-sandboxed-gym", "ray")
_SYSLOG_ACTION_READ_ALL = 3
_MEMORY_EVENTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""cgroup v2 and v1. Both hold a line `oom_kill N` for the container's own group."""

_PIDS_LIMIT = (Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids/pids.max"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a rollout does."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def measured_kernel() -> Kernel:
    """What a canary reports, for a comparison with the node's."""
    return Kernel(boot_id=_first_line(_BOOT_ID), release=platform.release(), words=kernel())


def pids_limit(files: tuple[Path, ...] = _PIDS_LIMIT) -> str:
    """`pids.max` of the container's own cgroup, e.g. `1024`; empty where there is no such file. `max` does not say that
    there is no limit: the kubelet's podPidsLimit is set on the pod's cgroup, which is not to be seen from inside."""
    return next(filter(None, map(_first_line, files)), "")


def kernel() -> str:
    """`uname -v`, the first line of the kernel's log and of /proc/version.

    gVisor names itself only in the log it makes up ("Starting gVisor..."); an ordinary container may
    not read the log at all.
    """
    parts = [platform.version(), _first_kernel_message(), _first_line(Path("/proc/version"))]
    return " | ".join(part for part in parts if part)


def _first_kernel_message() -> str:
    buffer = ctypes.create_string_buffer(1 << 16)
    length = ctypes.CDLL(None).klogctl(_SYSLOG_ACTION_READ_ALL, buffer, len(buffer))
    text = buffer.raw[: max(length, 0)].decode(errors="replace")
    return text.split("\n", 1)[0].strip()


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def out_of_memory_kills(counters: tuple[Path, ...] = _MEMORY_EVENTS) -> int:
    """How often the kernel killed a process of this container for lack of memory.

    0 also where no counter is readable, e.g. under gVisor, which kills the whole sandbox instead.
    """
    for path in counters:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
    return 0


def memory_advice(kills: int) -> str:
    """One sentence for a failure message, empty when nothing was killed."""
    if not kills:
        return ""
    return (
        f"a process of this pod was killed for lack of memory {kills} time{'s' if kills > 1 else ''}; "
        "raise resources.gymHost.limits.memory"
    )
