"""The base image, made from the Debian mirror that this machine already uses.

A Containerfile says `FROM debian:forky-slim`. With a registry at hand that name is pulled; without one the image made
here carries the same name in buildah's storage, so the Containerfile is the same in both places.
"""

import subprocess
import tarfile
from pathlib import Path

from .. import commands, report
from .buildah import Buildah

SUITE = "forky"
BASE_IMAGE = f"localhost/debian:{SUITE}-slim"
DEBOOTSTRAP_DEADLINE_SECONDS = 20 * 60

# The same configuration as Debian's own slim images: no documentation, no daemons started, no package cache.
_CONFIGURATION = {
    "etc/dpkg/dpkg.cfg.d/docker": """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/linda/*
path-exclude /usr/share/locale/*
force-unsafe-io
""",
    "usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",
    "etc/apt/apt.conf.d/docker-clean": """\
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
""",
    "etc/apt/apt.conf.d/docker-no-languages": 'Acquire::Languages "none";\n',
}
_EMPTIED = (
    "usr/share/man",
    "usr/share/groff",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/linda",
    "usr/share/locale",
    "var/cache/apt/archives",
    "var/lib/apt/lists",
    "var/log",
)
# debootstrap copies the identity and the sources of the machine it runs on.
_OF_THIS_MACHINE = ("etc/hostname", "etc/resolv.conf", "etc/apt/sources.list")


def ensure_base_image(buildah: Buildah, work: Path) -> None:
    if buildah.image_id(BASE_IMAGE):
        return
    mirror = choose_mirror(_apt_mirrors())
    root = work / f"rootfs-{SUITE}"
    _remove_tree(root)
    try:
        with report.step(f"base image debian:{SUITE}-slim: debootstrap from {mirror}, about 1 min"):
            _debootstrap(root, mirror, work / f"debootstrap-{SUITE}.log")
            make_slim(root)
            write_sources(root, mirror)
            _commit(buildah, root, work)
    finally:
        _remove_tree(root)


def choose_mirror(mirrors: list[str]) -> str:
    """The main archive among the mirrors of apt's configuration: security and add-on archives hold no whole release."""
    for mirror in mirrors:
        name = mirror.rstrip("/").rsplit("/", 1)[-1]
        if name == "debian":
            return mirror
    raise report.DevclusterError(
        "apt is configured with no mirror of Debian's main archive (an address that ends in /debian), "
        "which the base image is made from. "
        f"Found: {', '.join(mirrors) or 'none'}. Add one to /etc/apt/sources.list.d/ and run apt-get update."
    )


def make_slim(root: Path) -> None:
    for name, content in _CONFIGURATION.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    for name in _EMPTIED:
        _empty(root / name)
    for path in (root / "usr/share/doc").rglob("*"):
        if not path.is_dir() and path.name != "copyright":
            path.unlink()
    for name in _OF_THIS_MACHINE:
        (root / name).unlink(missing_ok=True)
    (root / "etc/machine-id").write_text("")


def write_sources(root: Path, mirror: str) -> None:
    keyrings = root / "usr/share/keyrings"
    keyring = next(
        name for name in ("debian-archive-keyring.pgp", "debian-archive-keyring.gpg") if (keyrings / name).exists()
    )
    (root / "etc/apt/sources.list.d/debian.sources").write_text(
        f"Types: deb\nURIs: {mirror}\nSuites: {SUITE}\nComponents: main\nSigned-By: /usr/share/keyrings/{keyring}\n"
    )


def _apt_mirrors() -> list[str]:
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return list(dict.fromkeys(listing.split()))


def _debootstrap(root: Path, mirror: str, log: Path) -> None:
    # ca-certificates is in it so that a build can mount this machine's bundle over a file that exists.
    command = [
        "debootstrap",
        "--variant=minbase",
        "--merged-usr",
        "--include=ca-certificates",
        "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg",
        SUITE,
        str(root),
        mirror,
        "/usr/share/debootstrap/scripts/sid",
    ]
    commands.run_logged(command, log, f"debootstrap of {SUITE}", DEBOOTSTRAP_DEADLINE_SECONDS)


def _commit(buildah: Buildah, root: Path, work: Path) -> None:
    archive = work / f"rootfs-{SUITE}.tar"
    try:
        with tarfile.open(archive, "w") as tar:
            tar.add(root, arcname=".")
        container = buildah.run("from", "scratch")
        try:
            buildah.run("add", "-q", container, str(archive), "/")
            buildah.run(
                "config",
                "--cmd",
                '["bash"]',
                "--env",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                container,
            )
            buildah.run("commit", "-q", container, BASE_IMAGE)
        finally:
            buildah.run("rm", container)
    finally:
        archive.unlink(missing_ok=True)


def _empty(directory: Path) -> None:
    for path in directory.glob("*"):
        _remove_tree(path)


def _remove_tree(path: Path) -> None:
    """Stops at mount points: debootstrap may have left /proc mounted when it was killed."""
    if not path.exists() and not path.is_symlink():
        return
    subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=True)
