"""The staged environment on its way into the sandbox: fetched, bounded, unpacked, checked, made runnable."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from ..api.gym_ports import COMPONENT_TYPES
from ..api.tree import MAX_BYTES, MAX_ENTRIES, tree_digest
from ..in_pods.folders import make_empty


class UnpackError(RuntimeError):
    """The environment did not arrive as it was staged."""


def unpack(archive: Path, directory: Path, digest: str) -> None:
    """Extract `archive` into `directory`, of which nothing else is left, and hold the tree against `digest`.

    Raises `UnpackError` for an archive that is damaged, too large, reaches outside, holds
    anything but files and directories, or yields another tree.
    """
    make_empty(directory)
    try:
        with tarfile.open(archive) as tar:
            for member in _bounded(tar):
                tar.extract(member, directory, filter="data")
        found = tree_digest(directory)
    except (tarfile.TarError, EOFError) as error:
        raise UnpackError(f"the environment's archive cannot be unpacked: {error}") from error
    if found != digest:
        raise UnpackError(
            f"the environment arrived as {found}, but the evaluator staged {digest}; it changed on the way"
        )


def _bounded(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    size = 0
    for count, member in enumerate(tar, start=1):
        size += member.size
        if count > MAX_ENTRIES or size > MAX_BYTES:
            raise UnpackError(f"the environment holds more than {MAX_ENTRIES} entries or {MAX_BYTES >> 30} GiB")
        if not (member.isfile() or member.isdir()):
            raise UnpackError(f"the environment's archive holds {member.name}, neither a file nor a directory")
        yield member


def link_venvs(venvs: Path, environment: Path, *, bundled: Path, python: Path) -> None:
    """Fill `venvs` with one `.venv` link per component, so that Gym installs nothing.

    Gym looks for `<type>/<server>/.venv` in a single folder. The bundled links are taken over; each
    component of the package gets one to `python`, the virtual environment of the image.
    """
    links = {link.relative_to(bundled): link.resolve() for link in bundled.glob("*/*/.venv")}
    for kind in COMPONENT_TYPES:
        for server in sorted((environment / kind).glob("*/")):
            links[Path(kind, server.name, ".venv")] = python
    for path, target in links.items():
        link = venvs / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target, target_is_directory=True)
