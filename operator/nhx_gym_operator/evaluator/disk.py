"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}
"""What link(2) says on a volume without them, such as one by SMB."""


def create_whole(file: Path, content: bytes, scratch: Path) -> None:
    """Make `file`, in one step for whoever else looks, by way of `scratch` beside it, which must be the caller's own.
    Raises `FileExistsError`, and leaves the file as it is then; `OSError`.

    On a volume without hard links nobody else can make it either, and for a moment it is empty."""
    try:
        with scratch.open("wb") as out:
            write_synced(out.fileno(), [content])
        try:
            os.link(scratch, file)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            with file.open("xb") as out:
                write_synced(out.fileno(), [content])
    finally:
        scratch.unlink(missing_ok=True)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """A file's new name is on disk with its directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(descriptor: int, contents: Iterable[bytes]) -> None:
    """Write all of it, and have it on disk with one sync. Raises `OSError`, and a part of it may stand there then."""
    for content in contents:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
