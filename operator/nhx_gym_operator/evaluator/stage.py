"""Staging: an environment's files, as a source mounts them, become one verified tree.

A mounted ConfigMap is a set of links into a hidden, dated folder (`..data`). What is staged are the
regular files behind the visible names, each once, and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from sandboxed_gym.environment_package import (
    ENVIRONMENT_MANIFEST_FILENAME,
    EnvironmentPackageError,
    inspect_environment_components,
    inspect_environment_namespaces,
    load_environment_package,
    validate_environment_namespaces,
)

from nhx_gym_operator.api.tree import STAGED_MANIFEST, tree_digest, tree_files

from .server import StagedEnvironment

MAX_FILES = 20_000
MAX_BYTES = 2 * 1024**3

log = logging.getLogger(__name__)


class StagingError(ValueError):
    """An environment that cannot be staged. Names the file and the rule."""


class Staged(BaseModel):
    """What was staged; written beside the tree as `STAGED_MANIFEST`."""

    digest: str
    files: int
    bytes: int


def stage(source: Path, target: Path) -> Staged:
    """Copy, validate and describe an environment. `target` is emptied first, so that a container that
    starts again does the same again. Raises `StagingError`."""
    _empty(target)
    size = _copy(source, target)
    files = tree_files(target)
    if not files:
        raise StagingError(f"the source of the environment ({source}) holds no file")
    _validate(target, files)
    staged = Staged(digest=tree_digest(target), files=len(files), bytes=size)
    (target / STAGED_MANIFEST).write_text(staged.model_dump_json() + "\n", encoding="utf-8")
    log.info("staged %d files, %d bytes, %s", staged.files, staged.bytes, staged.digest)
    return staged


def pack(tree: Path, archive: Path) -> StagedEnvironment:
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
    return StagedEnvironment(archive, staged.digest)


def _entry(tar: tarfile.TarFile, file: Path, name: str) -> tarfile.TarInfo:
    entry = tar.gettarinfo(str(file), arcname=name)
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _empty(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _copy(source: Path, target: Path) -> int:
    size = 0
    for count, (file, name) in enumerate(_visible_files(source), 1):
        size += file.stat().st_size
        if count > MAX_FILES or size > MAX_BYTES:
            raise StagingError(f"the environment has more than {MAX_FILES} files or {MAX_BYTES} bytes (at {name})")
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, destination)
        destination.chmod(0o755 if os.access(file, os.X_OK) else 0o644)
    return size


def _visible_files(source: Path) -> Iterator[tuple[Path, str]]:
    """Regular files below `source` behind links, with the name each is seen under."""
    if not source.is_dir():
        raise StagingError(f"the source of the environment ({source}) is not mounted")
    root = source.resolve()
    for directory, folders, files in os.walk(source, followlinks=True):
        here = Path(directory)
        if here == source:
            # The mount's own bookkeeping: `..data` and what it points to.
            folders[:] = [name for name in folders if not name.startswith("..")]
            files = [name for name in files if not name.startswith("..")]
        if len(here.relative_to(source).parts) > 32:
            raise StagingError(f"{here.relative_to(source)} lies more than 32 folders deep; is it a link to itself?")
        folders.sort()
        for name in sorted(files):
            file = here / name
            shown = file.relative_to(source).as_posix()
            behind = file.resolve()
            if not behind.is_relative_to(root):
                raise StagingError(f"{shown} is a link that leads out of the environment")
            if not behind.is_file():
                raise StagingError(f"{shown} is not a regular file")
            if shown == STAGED_MANIFEST:
                raise StagingError(f"{shown} is a name that staging itself uses; rename the file")
            yield behind, shown


def _validate(tree: Path, files: list[str]) -> None:
    if ENVIRONMENT_MANIFEST_FILENAME not in files:
        nested = [path for path in files if path.endswith(f"/{ENVIRONMENT_MANIFEST_FILENAME}")]
        found = f"; it lies at {nested[0]}: move the whole tree up so that it does not" if nested else ""
        raise StagingError(f"no {ENVIRONMENT_MANIFEST_FILENAME} at the root of the environment{found}")
    try:
        package = load_environment_package(tree)
        components = inspect_environment_components(package)
        validate_environment_namespaces(inspect_environment_namespaces(package, components=components))
    except EnvironmentPackageError as error:
        raise StagingError(str(error).replace(f"{tree}/", "")) from error
    except (OSError, UnicodeDecodeError) as error:
        raise StagingError(f"a file of the environment cannot be read: {error}") from error
    log.info("agents %s, resources servers %s", sorted(components.agents), sorted(components.resources_servers))


def manifest_text(staged: Staged) -> str:
    """What staging says about itself in its termination message."""
    return json.dumps(staged.model_dump())
