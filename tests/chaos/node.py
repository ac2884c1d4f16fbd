"""The node from below: which process is which container's, what they leave behind, and journals on their volumes."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from devcluster import cgroups, containerd, control_plane, paths, processes
from devcluster.processes import Identity
from support import cluster
from support.cluster import Object

GONE_SECONDS = 90
JOB_MIB, BESIDE_MIB = 250, 4096
"""Memory of a light job's pods, and of two jobs with NeMo Gym and six operators: see docs/performance.md."""
_POD_IN_CGROUP = re.compile(r"/pod([0-9a-f]{8}[0-9a-f-]{28})")


@dataclass(frozen=True)
class Records:
    """What a journal holds at some time: rollouts with a result or a failure, in order, by task and repeat."""

    results: list[tuple[int, int]]
    failures: list[tuple[int, int]]


def process_of(pod: Object, container: str) -> Identity:
    """The first process of a running container. Raises `LookupError`."""
    for status in pod["status"].get("containerStatuses", []):
        if status["name"] == container and "running" in status["state"]:
            return _task(status["containerID"].rpartition("/")[2])
    raise LookupError(f"container {container} of {pod['metadata']['name']} does not run")


def _task(container_id: str) -> Identity:
    for line in containerd.ctr("tasks", "ls").stdout.splitlines()[1:]:
        task, pid, *_ = line.split()
        if task == container_id and (who := processes.identify(int(pid))):
            return who
    raise LookupError(f"container {container_id} has no process")


def shim_of(process: Identity) -> Identity:
    """The containerd shim that a container's process hangs on. Raises `LookupError`."""
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    parent = int(stat.rpartition(")")[2].split()[1])
    command = Path(f"/proc/{parent}/cmdline").read_bytes()
    who = processes.identify(parent)
    if b"containerd-shim" not in command or who is None:
        raise LookupError(f"the parent of process {process.pid} is no shim: {command!r}")
    return who


def kill(who: Identity) -> None:
    if who.is_alive():
        os.kill(who.pid, signal.SIGKILL)


def until_gone(who: Identity) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while who.is_alive():
        if time.monotonic() > deadline:
            raise AssertionError(f"process {who.pid} still runs, {GONE_SECONDS} s after it should have ended")
        time.sleep(0.02)


def kill_api_server(down_seconds: float) -> None:
    """It comes back after so long, as devcluster starts it; returns when it is ready."""
    daemon = control_plane.api_server()
    who = processes.identity(daemon.name)
    assert who and who.is_alive(), "these tests need the local cluster's own API server"
    kill(who)
    until_gone(who)
    time.sleep(down_seconds)
    processes.ensure(daemon)


@contextmanager
def stopped(program: str) -> Iterator[None]:
    """One of the local cluster's own is there meanwhile, and does nothing."""
    who = processes.identity(program)
    assert who and who.is_alive(), f"these tests need the local cluster's own {program}"
    os.kill(who.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(who.pid, signal.SIGCONT)


def journal_of(namespace: str, claim: str) -> Path:
    """Where a claim's journal lies on this machine."""
    volume = cluster.get("persistentvolumeclaim", claim, namespace)["spec"]["volumeName"]
    return paths.volumes_dir() / volume / "journal.jsonl"


def read_journal(journal: Path) -> Records:
    """Without the line that a kill cut short."""
    found = Records([], [])
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    for line in lines:
        if line.endswith(b"}\n"):
            record = json.loads(line)["record"]
            places = {"result": found.results, "failure": found.failures}.get(record["kind"])
            if places is not None:
                places.append((record["task"], record["rollout"]))
    return found


def room() -> int:
    """For so many jobs at once this machine has memory now, and four on any."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return max(4, (available // 1024 - BESIDE_MIB) // JOB_MIB)


def pods_with_processes() -> dict[str, list[int]]:
    """Process ids by the UID of the pod in whose cgroup they are."""
    found: dict[str, list[int]] = {}
    for who in cgroups.members():
        try:
            text = Path(f"/proc/{who.pid}/cgroup").read_text()
        except OSError:
            continue
        if match := _POD_IN_CGROUP.search(text):
            found.setdefault(match[1], []).append(who.pid)
    return found


def leaked() -> list[str]:
    """Processes in cgroups of pods that the API server does not know, and containers of theirs."""
    known = {pod["metadata"]["uid"] for pod in cluster.listed("pods")}
    left = [f"processes {pids} of pod {uid}" for uid, pids in pods_with_processes().items() if uid not in known]
    for container in containerd.names("containers", "ls", "--quiet"):
        uid, name = _pod_of(container)
        if uid not in {"", *known}:
            left.append(f"container {container} of pod {name}")
    return left


@cache
def _pod_of(container: str) -> tuple[str, str]:
    """UID and name, which never change: of hundreds of containers each is asked for once."""
    labels = json.loads(containerd.ctr("containers", "info", container).stdout or "{}").get("Labels") or {}
    return labels.get("io.kubernetes.pod.uid", ""), labels.get("io.kubernetes.pod.name", "")
