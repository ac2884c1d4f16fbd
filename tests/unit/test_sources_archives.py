"""Archives from anywhere: what is in them comes out, and nothing gets out of bounds."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nhx_gym_operator.api.tree import tree_digest
from nhx_gym_operator.evaluator.sources import archives
from nhx_gym_operator.evaluator.sources.archives import unpack
from nhx_gym_operator.evaluator.sources.errors import StagingError

FILES = {"nemo-environment.yaml": b"format: native-v1\n", "a/b/ü #1.py": b"x" * 5000, "empty": b""}


def tar_of(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for entry in more:
            tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    return buffer.getvalue()


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as opened:
        for name, content in files.items():
            # ZipInfo itself would make folders of backslashes on some systems.
            entry = zipfile.ZipInfo()
            entry.filename, entry.compress_type = name, method
            opened.writestr(entry, content)
    return buffer.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


PACKED: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "tar": tar_of,
    "tar.gz": lambda files: gzip.compress(tar_of(files)),
    "tar.bz2": lambda files: bz2.compress(tar_of(files)),
    "tar.xz": lambda files: lzma.compress(tar_of(files)),
    "zip": zip_of,
    "stored zip": lambda files: zip_of(files, zipfile.ZIP_STORED),
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def opened(tmp_path: Path, content: bytes, target: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(content)
    unpack(archive, target)


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED.keys())
def test_every_kind_of_archive_gives_the_same_tree(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path, target: Path
) -> None:
    opened(tmp_path, pack(FILES), target)
    assert {name: (target / name).read_bytes() for name in FILES} == FILES
    plain = tmp_path / "plain"
    for name, content in FILES.items():
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_bytes(content)
    assert tree_digest(target) == tree_digest(plain)


def test_backslashes_of_a_zip_from_windows_become_folders(tmp_path: Path, target: Path) -> None:
    opened(tmp_path, zip_of({"a\\b\\app.py": b"1"}), target)
    assert (target / "a/b/app.py").read_bytes() == b"1"


OUTSIDE = ("../outside", "a/../../outside", "/outside", "C:/outside")


@pytest.mark.parametrize(
    ("pack", "name"),
    [*((tar_of, name) for name in OUTSIDE), *((zip_of, name) for name in (*OUTSIDE, "..\\outside"))],
)
def test_nothing_is_written_outside(
    pack: Callable[[dict[str, bytes]], bytes], name: str, tmp_path: Path, target: Path
) -> None:
    with pytest.raises(StagingError, match="leads out of the archive"):
        opened(tmp_path, pack({name: b"x"}), target)
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "target"}


@pytest.mark.parametrize("link", ["/etc/passwd", "../../outside"])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_that_leads_out_is_refused_by_name(kind: bytes, link: str, tmp_path: Path, target: Path) -> None:
    with pytest.raises(StagingError, match="odd"):
        opened(tmp_path, tar_of({"a": b""}, special("odd", kind, link)), target)


def test_nothing_is_written_through_a_link(tmp_path: Path, target: Path) -> None:
    through = tarfile.TarInfo("link/escaped")
    through.size = 1
    with pytest.raises(StagingError):
        opened(tmp_path, tar_of({}, special("link", tarfile.SYMTYPE, ".."), through), target)
    assert not (tmp_path / "escaped").exists()


def longer_than_a_path(*last: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Links in a row, each to a folder of a long name, then one that leads from the end of the row to a folder beside
    the archive's: resolving them step by step runs out of path before it sees where they lead (CVE-2025-4517)."""
    steps, folder, path = "abcdefghijklmnop", "d" * 247, ""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for step in steps:
            tar.addfile(special(f"{path}{folder}", tarfile.DIRTYPE))
            tar.addfile(special(f"{path}{step}", tarfile.SYMTYPE, folder))
            path += f"{folder}/"
        end = "/".join([*steps, "l" * 254])
        tar.addfile(special(end, tarfile.SYMTYPE, "../" * len(steps)))
        tar.addfile(special("way-out", tarfile.SYMTYPE, f"{end}/../beside"))
        for entry, content in last:
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_nothing_is_written_or_read_behind_links_whatever_they_are_taken_for(tmp_path: Path, target: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "secret").write_text("theirs")
    written = special("way-out/written", tarfile.REGTYPE)
    written.size = 1
    for last in ((written, b"x"), (special("taken", tarfile.LNKTYPE, "way-out/secret"), b"")):
        with pytest.raises(StagingError, match=r"link|outside|leads out"):
            opened(tmp_path, longer_than_a_path(last), target)
        shutil.rmtree(target)
        target.mkdir()
    assert [path.name for path in beside.iterdir()] == ["secret"]


def test_nothing_is_written_through_a_link_that_stays_inside_either(tmp_path: Path, target: Path) -> None:
    through = special("link/a", tarfile.REGTYPE)
    with pytest.raises(StagingError, match="link/a lies behind a link, link"):
        opened(tmp_path, tar_of({"folder/b": b""}, special("link", tarfile.SYMTYPE, "folder"), through), target)


@pytest.mark.parametrize(
    "content",
    [tar_of({}, special("odd", tarfile.LNKTYPE, "nowhere")), zip_of({"aü": b"x"}).replace("ü".encode(), b"\xff\xfe")],
    ids=["a link to no entry", "a name in no encoding"],
)
def test_what_the_reader_stumbles_over_is_a_damaged_archive(content: bytes, tmp_path: Path, target: Path) -> None:
    with pytest.raises(StagingError, match="cannot be unpacked"):
        opened(tmp_path, content, target)


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices_are_refused_by_name(kind: bytes, tmp_path: Path, target: Path) -> None:
    with pytest.raises(StagingError, match="odd is neither a file nor a folder"):
        opened(tmp_path, tar_of({}, special("odd", kind)), target)


def test_a_zip_with_a_link_is_refused_by_name(tmp_path: Path, target: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened_zip:
        entry = zipfile.ZipInfo("odd")
        entry.external_attr = 0o120777 << 16
        opened_zip.writestr(entry, "/etc/passwd")
    with pytest.raises(StagingError, match="odd is a link"):
        opened(tmp_path, buffer.getvalue(), target)


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_more_entries_than_allowed_are_refused(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_ENTRIES", 2)
    with pytest.raises(StagingError, match="more than 2 entries"):
        opened(tmp_path, pack(FILES), target)


@pytest.mark.parametrize("pack", [lambda files: gzip.compress(tar_of(files)), zip_of])
def test_a_small_archive_that_unpacks_to_too_much_is_refused_before_it_does(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_BYTES", 1 << 20)
    packed = pack({"bomb": b"\0" * (8 << 20)})
    assert len(packed) < 1 << 20
    with pytest.raises(StagingError, match="unpacks to more than"):
        opened(tmp_path, packed, target)
    assert sum(path.stat().st_size for path in target.rglob("*")) <= 1 << 20


def test_what_stands_between_the_entries_of_a_tar_is_bounded_too(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(archives, "MAX_TAR_BYTES", 2 << 20)
    entries = [tarfile.TarInfo(name) for name in "abc"]
    for entry in entries:
        entry.pax_headers = {"comment": "x" * (900 << 10)}
    with pytest.raises(StagingError, match="unpacks to more than"):
        opened(tmp_path, gzip.compress(tar_of({}, *entries)), target)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_name_without_an_end_is_refused_before_it_is_read(kind: bytes, tmp_path: Path, target: Path) -> None:
    """The library reads it at once: a GiB of it, a MiB in the archive, ended the container for want of memory."""
    endless = tarfile.TarInfo("endless")
    endless.type, endless.size = kind, 1 << 30
    with pytest.raises(StagingError, match="1073741824 bytes of a name or of attributes at 'endless'"):
        opened(tmp_path, endless.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 20), target)


def test_names_of_names_without_an_end_are_refused(tmp_path: Path, target: Path) -> None:
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 512
    with pytest.raises(StagingError, match="cannot be unpacked"):
        opened(tmp_path, (name.tobuf(tarfile.GNU_FORMAT) + bytes(512)) * 3000, target)


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_a_name_that_stands_twice_is_refused(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path, target: Path
) -> None:
    packed = tar_of({"a": b"1"}, tarfile.TarInfo("a")) if pack is tar_of else zip_of({"x/a": b"1", "x\\a": b"2"})
    with pytest.raises(StagingError, match="a twice"):
        opened(tmp_path, packed, target)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>not found</html>",
        gzip.compress(b"no tar" * 500),
        zip_of(FILES)[:60],
        gzip.compress(tar_of(FILES))[:90],
    ],
    ids=["empty", "a page", "no tar inside", "cut zip", "cut gzip"],
)
def test_what_is_no_whole_archive_is_refused(content: bytes, tmp_path: Path, target: Path) -> None:
    with pytest.raises(StagingError, match="cannot be unpacked"):
        opened(tmp_path, content, target)
