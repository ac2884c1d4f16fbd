"""The processes of this container, as /proc has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    state: str
    """One letter, of proc_pid_stat(5): `Z` or `X` once it has ended and waits to be reaped."""
    parent: int
    group: int


def all_processes() -> Iterator[Process]:
    """Those that are there, zombies included. One that goes meanwhile is left out."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The second field is the name in parentheses, which may itself hold spaces and parentheses.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2]
                state, parent, group = fields.split()[:3]
                yield Process(int(entry.name), state, int(parent), int(group))
