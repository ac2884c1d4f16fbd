"""What Debian has to provide. Only what is missing gets installed, and no daemon gets started by it."""

import contextlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from . import commands, paths, report

CNI_PLUGINS = Path("/usr/lib/cni")
# What has to be there -> the package that brings it.
NEEDED = {
    "runc": "runc",
    str(CNI_PLUGINS / "bridge"): "containernetworking-plugins",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "mount": "mount",
    "openssl": "openssl",
    "gcc": "gcc",
    "/usr/share/doc/libc6-dev": "libc6-dev",
}
POLICY = Path("/usr/sbin/policy-rc.d")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> list[str]:
    absent = [package for what, package in NEEDED.items() if not _is_there(what)]
    # Only Debian's own Python takes its pip from a package of Debian's.
    if importlib.util.find_spec("pip") is None and sys.prefix == "/usr":
        absent.append("python3-pip")
    return absent


def _is_there(what: str) -> bool:
    return Path(what).exists() if what.startswith("/") else bool(shutil.which(what, path=SYSTEM_PATH))


def install_missing() -> None:
    wanted = missing()
    if not wanted:
        return
    if not shutil.which("apt-get"):
        raise report.DevclusterError(f"these Debian packages (or their like) have to be installed: {' '.join(wanted)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    log = paths.cache_dir() / "log" / "apt.log"
    with report.step(f"apt-get: installing {' '.join(wanted)}, about 1 min"), _no_daemons():
        commands.run_logged(["apt-get", "update"], log, "apt-get update", 600, env=environment)
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *wanted]
        commands.run_logged(install, log, "apt-get install", 1200, env=environment)
    if left := missing():
        raise report.failure(f"apt-get succeeded, but still missing: {' '.join(left)}", log)


@contextlib.contextmanager
def _no_daemons():
    """Debian asks this script before it starts a service; one that is there already is left as it is."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
