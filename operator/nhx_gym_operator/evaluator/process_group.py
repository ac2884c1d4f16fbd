"""The end of a child process and of all that it left in its group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from ..in_pods.processes import all_processes

POLL_S = 0.05


async def end_group(process: asyncio.subprocess.Process, grace_s: float) -> int:
    """End the group that `process` leads within `grace_s` seconds; returns how many had to be killed.

    SIGINT comes first, as from the SDK's own `terminate`: by it `gym env start` ends its servers and Ray in order.
    What is still there when it has ended, or after half of the grace, gets SIGTERM, and at the end SIGKILL. The SDK
    waits for the leader alone, and would leave a server behind that takes no notice.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    group = process.pid
    _signal(group, signal.SIGINT)
    while process.returncode is None and members(group) and loop.time() < start + grace_s / 2:
        await asyncio.sleep(POLL_S)
    _signal(group, signal.SIGTERM)
    while members(group) and loop.time() < start + grace_s:
        await asyncio.sleep(POLL_S)
    killed = len(members(group))
    _signal(group, signal.SIGKILL)
    await process.wait()
    return killed


def members(group: int) -> list[int]:
    """Process ids of a group, those left out that have ended and wait to be reaped."""
    return [process.pid for process in all_processes() if process.group == group and process.state not in "ZX"]


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
