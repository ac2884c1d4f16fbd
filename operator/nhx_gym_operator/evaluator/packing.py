"""The staged environment as one archive, for hosts to fetch."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

from ..api.tree import STAGED_MANIFEST, tree_digest, tree_files
from ..api.wire.reports import Staged
from .sources.errors import StagingError


@dataclass(frozen=True)
class PackedEnvironment:
    """The archive that hosts fetch, and the digest of the tree in it."""

    archive: Path
    digest: str


def pack(tree: Path, archive: Path) -> PackedEnvironment:
    """The staged tree as an uncompressed tar, for hosts to fetch. Raises `StagingError` if the tree is
    not the one that was staged."""
    try:
        staged = Staged.model_validate_json((tree / STAGED_MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise StagingError(f"no environment was staged in {tree}: {error}") from error
    if tree_digest(tree) != staged.digest:
        raise StagingError(f"the environment in {tree} is not the one that was staged ({staged.digest})")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as tar:
        for path in tree_files(tree):
            with (tree / path).open("rb") as file:
                tar.addfile(_entry(tar, tree / path, path), file)
    return PackedEnvironment(archive, staged.digest)


def _entry(tar: tarfile.TarFile, file: Path, name: str) -> tarfile.TarInfo:
    entry = tar.gettarinfo(str(file), arcname=name)
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
