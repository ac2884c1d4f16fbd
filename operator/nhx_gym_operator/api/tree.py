"""The digest of a staged environment: one definition for who stages it and who receives it."""

from __future__ import annotations

import hashlib
from pathlib import Path

STAGED_MANIFEST = ".nhx-staged.json"
"""Written at the tree's root by staging, and no part of the tree."""


def tree_files(root: Path) -> list[str]:
    """Paths of the tree's regular files relative to `root`, with `/`, in a fixed order."""
    files = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(path for path in files if path != STAGED_MANIFEST)


def tree_digest(root: Path) -> str:
    """`sha256:<hex>` over path and content of every file below `root`.

    Modes and times do not count, so that one tree has one digest however it was carried: as a
    mounted ConfigMap, a claim, or an archive.
    """
    tree = hashlib.sha256()
    for path in tree_files(root):
        with (root / path).open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        tree.update(f"{path}\0{content}\n".encode())
    return f"sha256:{tree.hexdigest()}"
