"""Folders that a container fills, and fills anew when it is started again."""

from __future__ import annotations

import shutil
from pathlib import Path


def make_empty(directory: Path) -> None:
    """Nothing is in it afterwards. The folder itself may be a mount point and stays; where a link leads stays too."""
    directory.mkdir(parents=True, exist_ok=True)
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
