import pytest

from devcluster.images.base import choose_mirror, make_slim, write_sources
from devcluster.report import DevclusterError


def test_the_main_archive_is_taken_among_the_mirrors():
    mirrors = ["http://mirror.example/debian-security/", "http://mirror.example/debian/", "http://other.example/debian"]
    assert choose_mirror(mirrors) == "http://mirror.example/debian/"


def test_without_a_main_archive_the_mirrors_found_are_named():
    with pytest.raises(DevclusterError, match=r"Found: http://mirror\.example/debian-security/"):
        choose_mirror(["http://mirror.example/debian-security/"])


def test_nothing_of_this_machine_stays_in_the_image(tmp_path):
    kept = "usr/share/doc/bash/copyright"
    dropped = {"etc/hostname", "etc/resolv.conf", "usr/share/doc/bash/README", "var/log/dpkg.log"}
    for name in (kept, *dropped):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    make_slim(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert not left & dropped
    assert kept in left
    assert (tmp_path / "etc/machine-id").read_text() == ""


def test_the_image_installs_from_the_same_mirror(tmp_path):
    (tmp_path / "usr/share/keyrings").mkdir(parents=True)
    (tmp_path / "usr/share/keyrings/debian-archive-keyring.pgp").touch()
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    write_sources(tmp_path, "http://mirror.example/debian/")
    sources = (tmp_path / "etc/apt/sources.list.d/debian.sources").read_text()
    assert "URIs: http://mirror.example/debian/\n" in sources
    assert "debian-archive-keyring.pgp" in sources
