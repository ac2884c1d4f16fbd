"""`kubectl nhx report`: the bundle's report.html, on this machine and in its browser."""

from __future__ import annotations

import shutil
import tempfile
import webbrowser
from pathlib import Path, PurePosixPath

from rich.console import Console

from ..client.download import download
from ..client.errors import NotFound, UsageProblem
from ..client.jobs import Job
from ..client.kubectl import Kubectl
from ..client.reader import FEW_FILES_SECONDS

REPORT = "report.html"


def fetch(kubectl: Kubectl, job: Job, wanted: Path | None, image: str | None, errors: Console) -> Path:
    """Where the report is now: at `wanted`, which must not exist, or in a new temporary directory."""
    if wanted and wanted.exists():
        raise UsageProblem(f"{wanted} exists, and nothing is overwritten. Name a file that does not.")
    folder = Path(tempfile.mkdtemp(prefix=f"{job.name}-"))
    try:
        download(kubectl, job, folder, image, FEW_FILES_SECONDS, errors, only=_is_report)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, NotFound):
            raise NotFound(f"job `{job.name}` has no report: {error}") from None
        raise
    # Of a deleted job there are those of all its attempts.
    found = max(folder.rglob(REPORT), key=lambda file: file.parent.name)
    if not wanted:
        return found
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.write_bytes(found.read_bytes())
    shutil.rmtree(folder)
    return wanted


def _is_report(path: str) -> bool:
    return PurePosixPath(path).name == REPORT


def show(file: Path) -> bool:
    """Opens it in the browser of this machine; False where there is none."""
    return webbrowser.open(file.resolve().as_uri())
