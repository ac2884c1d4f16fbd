"""Staging: a FileSet's files, from whatever source, become one verified tree.

A mounted ConfigMap is a set of links into a hidden, dated folder (`..data`). What is staged are the
regular files behind the visible names, each once, and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandboxed_gym.environment_package import (
    ENVIRONMENT_MANIFEST_FILENAME,
    EnvironmentPackageError,
    inspect_environment_components,
    inspect_environment_namespaces,
    load_environment_package,
    validate_environment_namespaces,
)
from yarl import URL

from ..api.tree import MAX_BYTES, MAX_ENTRIES, STAGED_MANIFEST, tree_digest, tree_files
from ..api.wire.mounts import AUTHORIZATION
from ..api.wire.plans import StagePlan
from ..api.wire.reports import Staged
from ..api.wording import some_of
from ..in_pods.folders import make_empty
from .plan import Paths
from .sources.archives import unpack
from .sources.download import Downloader, downloader
from .sources.errors import StagingError
from .sources.s3 import SourceBucket
from .untrusted import well_formed

_CONFIG_MAP_DATA = "..data"
_FILE_SYSTEMS_OWN = "lost+found"
_LISTED = 10

log = logging.getLogger(__name__)


def stage(plan: StagePlan, paths: Paths, secrets: Mapping[str, str]) -> Staged:
    """Bring the plan's FileSet in, verify and describe it. What an earlier try left is removed first, so that a
    container that starts again does the same again. `secrets` are those of the source, by the names of
    `api.wire.mounts` and `api.object_store`. Raises `StagingError`."""
    with tempfile.TemporaryDirectory(prefix="stage-") as scratch:
        tree = paths.environment if plan.dataset is None else Path(scratch, "set")
        make_empty(tree)
        source = _source(plan, paths, secrets, Path(scratch))
        size = _copy(_root(source, plan), tree)
        files = tree_files(tree)
        if not files:
            raise StagingError(f"{plan.source} holds no file{_below(plan)}")
        staged = Staged(digest=tree_digest(tree), files=len(files), bytes=size)
        if plan.digest and plan.digest != staged.digest:
            raise StagingError(
                f"{plan.source} holds files of the digest {staged.digest}, but spec.digest of FileSet "
                f"{plan.file_set!r} asks for {plan.digest}"
            )
        if plan.dataset is None:
            _validate(tree, files, plan)
            (tree / STAGED_MANIFEST).write_text(staged.model_dump_json() + "\n", encoding="utf-8")
        else:
            _take_rows(tree, files, plan, paths.staged_dataset)
    log.info("staged %d files, %d bytes, %s", staged.files, staged.bytes, staged.digest)
    return staged


def _source(plan: StagePlan, paths: Paths, secrets: Mapping[str, str], scratch: Path) -> Path:
    """The folder that the source's files lie in: the mount, or one into which they were fetched."""
    if plan.http is None and plan.s3 is None:
        return paths.source
    fetched = scratch / "fetched"
    fetched.mkdir()
    asyncio.run(_fetch(plan, paths, secrets, scratch / "archive", fetched))
    return fetched


async def _fetch(plan: StagePlan, paths: Paths, secrets: Mapping[str, str], archive: Path, target: Path) -> None:
    field = "spec.source.http" if plan.http else "spec.source.s3"
    async with downloader(field, paths.source_certificates) as get:
        if plan.http:
            await _get_http(get, plan, secrets, archive)
        elif plan.s3:
            bucket = SourceBucket(plan.s3, secrets, paths.source_certificates)
            if plan.s3.key is None:
                return await bucket.folder(get, target)
            await bucket.archive(get, archive)
    fetch = plan.http or plan.s3
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if fetch and fetch.sha256 and fetch.sha256 != found:
        raise StagingError(
            f"{plan.source} has the SHA-256 {found}, but {field}.sha256 asks for {fetch.sha256}"
            f"{_digest_inside(archive, target, plan)}. If the archive may be packed again, take sha256 out and ask for "
            f"what it holds: spec.digest, which the FileSet's status shows"
        )
    unpack(archive, target)
    archive.unlink()


def _digest_inside(archive: Path, target: Path, plan: StagePlan) -> str:
    """Of an archive that is not the one asked for, as a sentence goes on: the same files, packed again, have the digest
    that they had. It is taken apart with the care that any archive is, and nothing of it is staged."""
    try:
        unpack(archive, target)
        tree = target.with_name("refused")
        tree.mkdir()
        _copy(_root(target, plan), tree)
    except StagingError as error:
        return f"; what it holds cannot be told ({error})"
    return f"; the files that it holds have the digest {tree_digest(tree)}"


async def _get_http(get: Downloader, plan: StagePlan, secrets: Mapping[str, str], archive: Path) -> None:
    if plan.http is None:
        raise ValueError("not an HTTP source")
    url, header = URL(plan.http.url), secrets.get(AUTHORIZATION)
    await get.get(url, archive, limit=MAX_BYTES, shown=plan.source, authorization=header)


def _root(source: Path, plan: StagePlan) -> Path:
    """The folder that is the set's root."""
    if not source.is_dir():
        raise StagingError(f"{plan.source} is not mounted at {source}")
    root = source / (plan.path or "")
    if not root.resolve().is_relative_to(source.resolve()):
        raise StagingError(f"{_path_field(plan)} {plan.path!r} leads out of {plan.source}")
    if not root.is_dir():
        there = some_of(sorted(entry.name for entry in source.iterdir()), _LISTED) or "nothing"
        raise StagingError(f"{plan.source} has no folder {plan.path!r} ({_path_field(plan)}); at its root is {there}")
    return root


def _path_field(plan: StagePlan) -> str:
    """The field that says which folder of the source is the set's root."""
    if plan.s3 and plan.s3.key is None:
        return "spec.source.s3.prefix"
    kind = "http" if plan.http else "s3" if plan.s3 else plan.source.partition(" ")[0]
    kinds = {"PersistentVolumeClaim": "persistentVolumeClaim", "ConfigMap": "configMap"}
    return "spec.source.configMap.items" if kind == "ConfigMap" else f"spec.source.{kinds.get(kind, kind)}.path"


def _below(plan: StagePlan) -> str:
    return f" below {plan.path!r} ({_path_field(plan)})" if plan.path else ""


def _take_rows(tree: Path, files: list[str], plan: StagePlan, target: Path) -> None:
    name = plan.dataset or ""
    if name not in files:
        raise StagingError(
            f"FileSet {plan.file_set!r} has no file {name!r} (spec.tasks.dataset.fileSet.path); it has "
            f"{some_of(files, _LISTED)}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(tree / name, target)


def _copy(source: Path, target: Path) -> int:
    size = 0
    for count, (file, name) in enumerate(_visible_files(source), 1):
        size += file.stat().st_size
        if count > MAX_ENTRIES or size > MAX_BYTES:
            raise StagingError(f"there are more than {MAX_ENTRIES} files or {MAX_BYTES >> 30} GiB (at {name})")
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, destination)
        destination.chmod(0o755 if os.access(file, os.X_OK) else 0o644)
    return size


def _visible_files(source: Path) -> Iterator[tuple[Path, str]]:
    """Regular files below `source` behind links, with the name each is seen under."""
    root = source.resolve()
    is_config_map = (source / _CONFIG_MAP_DATA).is_symlink()
    for seen, (directory, folders, files) in enumerate(os.walk(source, followlinks=True, onerror=_unreadable), 1):
        here = Path(directory)
        # A few links to folders of links are more folders than anybody walks through.
        if seen > MAX_ENTRIES:
            raise StagingError(f"there are more than {MAX_ENTRIES} folders (at {here.relative_to(source)})")
        if here == source:
            if is_config_map:
                # The mount's own bookkeeping: `..data` and what it points to.
                folders[:] = [name for name in folders if not name.startswith("..")]
                files = [name for name in files if not name.startswith("..")]
            folders[:] = [name for name in folders if name != _FILE_SYSTEMS_OWN]
        if len(here.relative_to(source).parts) > 32:
            raise StagingError(f"{here.relative_to(source)} lies more than 32 folders deep; is it a link to itself?")
        folders.sort()
        for name in sorted(files):
            file = here / name
            shown = file.relative_to(source).as_posix()
            if well_formed(shown) != shown:
                raise StagingError(f"{well_formed(shown)} is a name that is not UTF-8; rename the file")
            behind = file.resolve()
            if not behind.is_relative_to(root):
                raise StagingError(f"{shown} is a link that leads out of the set")
            if not behind.is_file():
                raise StagingError(f"{shown} is not a regular file")
            if not os.access(behind, os.R_OK):
                raise StagingError(f"{shown} cannot be read: user {os.getuid()}, group {os.getgid()} may not")
            if shown == STAGED_MANIFEST:
                raise StagingError(f"{shown} is a name that staging itself uses; rename the file")
            yield behind, shown


def _unreadable(error: OSError) -> None:
    raise StagingError(f"a folder cannot be read: {error}") from error


def _validate(tree: Path, files: list[str], plan: StagePlan) -> None:
    if ENVIRONMENT_MANIFEST_FILENAME not in files:
        nested = [path for path in files if path.endswith(f"/{ENVIRONMENT_MANIFEST_FILENAME}")]
        where = nested[0].rpartition("/")[0] if nested else ""
        found = (
            f"; it lies in {where!r}: let {_path_field(plan)} of FileSet {plan.file_set!r} lead there" if where else ""
        )
        raise StagingError(f"no {ENVIRONMENT_MANIFEST_FILENAME} at the root of the environment{found}")
    try:
        package = load_environment_package(tree)
        components = inspect_environment_components(package)
        validate_environment_namespaces(inspect_environment_namespaces(package, components=components))
    except EnvironmentPackageError as error:
        raise StagingError(str(error).replace(f"{tree.resolve()}/", "").replace(f"{tree}/", "")) from error
    except (OSError, UnicodeDecodeError) as error:
        raise StagingError(f"a file of the environment cannot be read: {error}") from error
    log.info("agents %s, resources servers %s", sorted(components.agents), sorted(components.resources_servers))
