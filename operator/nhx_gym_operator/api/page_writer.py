"""The command of a module that makes a page of `docs/`: `python -m MODULE FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def write_page(module: str, render: Callable[[], str], arguments: Sequence[str]) -> int:
    """Writes the page to the one file that is named. Returns the exit code: 2 without one."""
    if len(arguments) != 1:
        print(f"usage: python -m {module} FILE", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(render(), encoding="utf-8")
    return 0
