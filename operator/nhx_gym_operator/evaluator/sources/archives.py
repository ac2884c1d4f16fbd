"""Archives from outside: unpacked within bounds, into one folder, and nothing but files and folders."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from ...api.tree import MAX_BYTES, MAX_ENTRIES, MAX_TAR_BYTES
from .errors import StagingError

_OPENERS: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_ABOUT_THE_NEXT = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_MOST_ABOUT = 1 << 20
"""Bytes of a long name or of attributes, which the library reads at once. Names on Linux have 4096 at most."""


_DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
    EOFError, NotImplementedError, LookupError, ValueError, OverflowError, RecursionError,
)  # fmt: skip
"""What the readers raise over bytes that somebody made up, the last ones undocumented."""


def unpack(archive: Path, target: Path) -> None:
    """Extract a tar (plain, gzip, bzip2, xz) or zip into the empty folder `target`. Links inside the archive stay
    links, those that lead out of it are refused. Raises `StagingError` naming the entry."""
    with archive.open("rb") as file:
        head = file.read(8)
    try:
        if head.startswith(_ZIP):
            _unzip(archive, target)
        else:
            with _decompressed(archive, head) as stream:
                _untar(_Bounded(stream), target)
    except StagingError:
        raise
    except _DAMAGED as error:
        raise StagingError(
            f"the archive cannot be unpacked ({error}): it is damaged, or no .tar, .tar.gz, .tar.bz2, .tar.xz or .zip"
        ) from error
    except OSError as error:
        raise StagingError(f"the archive cannot be unpacked: {error}".replace(f"{target}/", "")) from error


def _decompressed(archive: Path, head: bytes) -> IO[bytes]:
    for magic, opener in _OPENERS.items():
        if head.startswith(magic):
            return opener(archive)
    return archive.open("rb")


class _Entry(tarfile.TarInfo):
    """Of which no more is held than there is any use for."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _ABOUT_THE_NEXT and entry.size > _MOST_ABOUT:
            raise StagingError(f"the archive has {entry.size} bytes of a name or of attributes at {entry.name!r}")
        return entry


class _Bounded(io.RawIOBase):
    """A stream that ends with an error before it can fill the disk: a small archive may unpack to anything."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = MAX_TAR_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _too_large("its entries")
        return data


class _Budget:
    """What an archive may still hold."""

    def __init__(self) -> None:
        self._entries, self._bytes = 0, 0

    def take(self, name: str, size: int) -> None:
        self._entries += 1
        self._bytes += size
        if self._entries > MAX_ENTRIES or self._bytes > MAX_BYTES:
            raise _too_large(name)


def _too_large(where: str) -> StagingError:
    return StagingError(f"the archive unpacks to more than {MAX_ENTRIES} entries or {MAX_BYTES >> 30} GiB (at {where})")


def _untar(stream: _Bounded, target: Path) -> None:
    budget = _Budget()
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Entry) as tar:
        for member in tar:
            budget.take(member.name, member.size)
            if not (member.isfile() or member.isdir() or member.islnk() or member.issym()):
                raise StagingError(f"the archive's {member.name} is neither a file nor a folder")
            _check_name(member.name)
            _check_new(target, member.name, member.isdir())
            _check_way(target, member.name)
            if member.islnk():
                _check_way(target, member.linkname)
            try:
                tar.extract(member, target, filter="data")
            except tarfile.FilterError as error:
                raise StagingError(f"the archive's {member.name} leads out of the archive") from error


def _unzip(archive: Path, target: Path) -> None:
    budget = _Budget()
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            # Some Windows programs write their own separator, against the format.
            name = entry.filename.replace("\\", "/")
            budget.take(name, entry.file_size)
            _check_name(name)
            if entry.flag_bits & 1:
                raise StagingError(f"the archive's {name} is encrypted")
            mode = entry.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise StagingError(f"the archive's {name} is a link or a device; pack the file itself")
            _check_new(target, name, name.endswith("/"))
            file = target / name
            if name.endswith("/"):
                file.mkdir(parents=True, exist_ok=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            # zipfile reads no more than the size that was counted, and checks it.
            with opened.open(entry) as content, file.open("wb") as out:
                shutil.copyfileobj(content, out)
            file.chmod(0o755 if mode & 0o100 else 0o644)


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or (len(name) > 1 and name[1] == ":"):
        raise StagingError(f"the archive's {name!r} leads out of the archive: names must be relative, without '..'")


def _check_way(target: Path, name: str) -> None:
    """That no folder on the way to an entry is a link. Where links lead is the library's to judge, and a chain of them
    that is longer than a path may be has deceived it (CVE-2025-4517): so nothing is written or read behind one."""
    for folder in PurePosixPath(name).parents:
        if (target / folder).is_symlink():
            raise StagingError(
                f"the archive's {name} lies behind a link, {folder}: it leads out of the archive, or may"
            )


def _check_new(target: Path, name: str, is_folder: bool) -> None:
    file = target / name
    if not is_folder and (file.is_symlink() or file.exists()):
        raise StagingError(f"the archive holds {name} twice")
