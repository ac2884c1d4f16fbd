"""Ending everything this container started, also what detached itself.

Gym's servers are children, but Ray puts its own into sessions of their own, and whatever an
environment starts may fork away as it likes. As a subreaper the launcher stays the ancestor of all of
them, so that the tree below it is complete and none is left to hold the pod's end up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from ..in_pods.processes import all_processes

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Process ids of all living descendants of this process, zombies included."""
    children: dict[int, list[int]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process.pid)
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def end_descendants(grace_s: float) -> int:
    """End and reap all descendants: SIGTERM, then after `grace_s` seconds SIGKILL until none is left.

    Returns the number that had to be killed. Processes forked meanwhile are found by the next look.
    """
    _signal_all(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _reap() and time.monotonic() < deadline:
        time.sleep(0.05)
    killed: set[int] = set()
    # A process in uninterruptible sleep cannot be reaped; the container's end takes it along.
    deadline = time.monotonic() + 2.0
    while (left := _reap()) and time.monotonic() < deadline:
        killed.update(left)
        _signal_all(signal.SIGKILL)
        time.sleep(0.02)
    return len(killed)


def _signal_all(number: signal.Signals) -> None:
    for pid in descendants():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def _reap() -> list[int]:
    """Collect ended children; return the descendants still there."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if pid == 0:
            return descendants()
