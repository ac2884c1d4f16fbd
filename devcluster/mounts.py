"""Mounts: the kubelet's shared folder, and what pods leave mounted when they die."""

import subprocess
from pathlib import Path

from . import paths, report


def below(folders: list[Path], mountinfo: str) -> list[str]:
    """The mount points in or at these folders, the last mounted first."""
    points = [_unescape(line.split()[4]) for line in mountinfo.splitlines()]
    return [point for point in reversed(points) if any(Path(point).is_relative_to(folder) for folder in folders)]


def _unescape(point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point


def _mountinfo() -> str:
    return Path("/proc/self/mountinfo").read_text()


def share_kubelet_dir() -> None:
    """Mounts made below it have to be seen by pods, and the machine's own root is often private."""
    folder = str(paths.kubelet_dir())
    paths.kubelet_dir().mkdir(parents=True, exist_ok=True)
    if folder not in below([paths.kubelet_dir()], _mountinfo()):
        _run("mount", "--bind", folder, folder)
    _run("mount", "--make-rshared", folder)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise report.DevclusterError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")


def unmount_below(*folders: Path) -> None:
    for point in below(list(folders), _mountinfo()):
        if subprocess.run(["umount", point], capture_output=True).returncode:
            subprocess.run(["umount", "--lazy", point], capture_output=True)
    left = below(list(folders), _mountinfo())
    if left:
        raise report.DevclusterError(f"these mounts do not come off: {', '.join(left)}")
