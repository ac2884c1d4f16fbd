"""A staged environment's digest and bounds: one definition for who stages it and who receives it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

STAGED_MANIFEST = ".nhx-staged.json"
"""Written at the tree's root by staging, and no part of the tree."""

MAX_ENTRIES = 20_000
MAX_BYTES = 2 << 30
"""What a FileSet may hold."""
MAX_TAR_BYTES = MAX_BYTES + (256 << 20)
"""A tar of as much: with a header and padding for each entry, and long names."""


def tree_files(root: Path) -> list[str]:
    """Paths of the tree's regular files relative to `root`, with `/`, in a fixed order."""
    files = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(path for path in files if path != STAGED_MANIFEST)


def tree_digest(root: Path) -> str:
    """`sha256:<hex>` over path and content of every file below `root`.

    Modes and times do not count, so that one tree has one digest however it was carried: as a
    mounted ConfigMap, a claim, or an archive.
    """
    return _digest((path, _file_digest(root / path)) for path in tree_files(root))


def content_sum(content: bytes) -> str:
    """What `digest_of_sums` takes for a file's content."""
    return hashlib.sha256(content).hexdigest()


def digest_of_sums(sums: Mapping[str, str]) -> str:
    """The digest of a tree whose files' contents have these sums, by path."""
    return _digest((path, sums[path]) for path in sorted(sums))


def _file_digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _digest(files: Iterable[tuple[str, str]]) -> str:
    tree = hashlib.sha256()
    for path, content in files:
        tree.update(f"{path}\0{content}\n".encode())
    return f"sha256:{tree.hexdigest()}"
