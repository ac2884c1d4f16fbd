"""`kubectl nhx download`: the result bundle, from the job's volume into a directory here."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..api import pod_facts
from ..api.constants import CONTAINER_EVALUATE, Phase
from ..api.results import ObjectStoreResults
from ..api.wire import mounts
from ..api.wording import terminal_safe
from .errors import NotFound, UsageProblem, UserError
from .jobs import Body, Job, evaluator_of, pods_of
from .kubectl import Kubectl
from .reader import CONTAINER, Contents, choose_image, of_bucket, of_claim, reader_pod, running_reader

_SUMMARY = "summary.json"
_BESIDE = {PurePosixPath(path).name: path for path in (mounts.JOURNAL, mounts.EVALUATOR_LOG)}
"""Files that lie beside the bundle, by the name that they get in a copy."""


_NOT_OURS = "lost+found"
"""Of the file system, and closed to everybody."""


@dataclass(frozen=True)
class Source:
    """A running container in which `directory` holds the bundle. `live`: the evaluator is still at work."""

    pod: str
    container: str
    directory: str
    live: bool


def download(
    kubectl: Kubectl,
    job: Job,
    target: Path,
    image: str | None,
    lifetime_seconds: int,
    console: Console,
    *,
    only: Callable[[str], bool] | None = None,
) -> int:
    """Copies the bundle into `target`, which must be absent or empty: the files whose path in it `only` accepts, or
    all. Returns their number; raises `NotFound` if there is none."""
    require_empty(target)
    kubectl = kubectl.in_namespace(job.namespace)
    evaluator = evaluator_of(pods_of(kubectl, job))
    with _source(kubectl, job, evaluator, image, lifetime_seconds, console) as source:
        sizes = _list_files(kubectl, source)
        wanted = only or _of_the_bundle(job)
        sizes = {path: size for path, size in sizes.items() if wanted(path)}
        if not sizes:
            what = "such file" if only else "file"
            raise NotFound(f"there is no {what} in {source.directory} of job `{job.name}` ({job.says}).")
        with _staged(target) as staging:
            _copy(kubectl, source, staging, sizes, console, whole=only is None)
            if not source.live:
                _verify(staging, sizes)
    if only is None and not any(PurePosixPath(path).name == _SUMMARY for path in sizes):
        _say(console, f"note: the bundle is not complete, {_SUMMARY} is missing ({job.says})")
    return len(sizes)


def _of_the_bundle(job: Job) -> Callable[[str], bool]:
    """All of it. Without an end that was scored no file of the bundle holds a rollout: then what lies beside it comes
    along."""
    return lambda path: job.phase != Phase.SUCCEEDED or path not in _BESIDE


def require_empty(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise UsageProblem(f"{target} is a file. Name a directory that is empty or does not exist yet.")
    if target.is_dir() and any(target.iterdir()):
        raise UsageProblem(
            f"{target} is not empty, and nothing in it is overwritten. Name an empty or a new directory."
        )


@contextmanager
def _source(
    kubectl: Kubectl, job: Job, evaluator: Body | None, image: str | None, lifetime_seconds: int, console: Console
) -> Iterator[Source]:
    directory = str(PurePosixPath(mounts.RESULTS_DIR, job.results_path))
    if evaluator and "running" in pod_facts.state(evaluator, CONTAINER_EVALUATE):
        _say(console, "the evaluator still runs: copying the rollouts recorded so far, as journal.jsonl")
        yield Source(evaluator["metadata"]["name"], CONTAINER_EVALUATE, directory, live=True)
        return
    contents = _contents(job)
    manifest = reader_pod(job, contents, choose_image(job, evaluator, image), evaluator, lifetime_seconds)
    _say(console, f"starting the reader pod {manifest['metadata']['name']} on {job.results_location}")
    with running_reader(kubectl, manifest) as pod:
        yield Source(pod, CONTAINER, directory, live=False)


def _contents(job: Job) -> Contents:
    """Where a reader finds the bundle of a job whose evaluator has ended."""
    if job.is_in_bucket:
        store = ObjectStoreResults.model_validate(job.body["spec"]["results"]["objectStore"])
        return of_bucket(store, job.results_path)
    return of_claim(job.claim or _no_claim(job))


def _no_claim(job: Job) -> str:
    if not job.results_location:
        raise NotFound(f"job `{job.name}` has no results yet ({job.says}).")
    raise NotFound(
        f"the results of job `{job.name}` were in an emptyDir and went with its pod. The aggregates are kept in the "
        f"status: `kubectl nhx results {job.name} --namespace {job.namespace}`. To keep the bundle of the next run, "
        "set spec.results.persistentVolumeClaim or spec.results.objectStore."
    )


def _list_files(kubectl: Kubectl, source: Source) -> dict[str, int]:
    """Path in a copy to size in bytes, of every regular file of the bundle and of those beside it."""
    # One search of the volume, since a file that is given to find must exist.
    beside = [word for path in _BESIDE.values() for word in ("-o", "-path", path)]
    listing = kubectl.text(
        "exec", source.pod, f"--container={source.container}", "--",
        "find", mounts.RESULTS_DIR, "-name", _NOT_OURS, "-prune", "-o",
        "-type", "f", "(", "-path", f"{source.directory}/*", *beside, ")",
        "-printf", r"%s\t%P\0",
    )  # fmt: skip
    entries = (entry.split("\t", 1) for entry in listing.split("\0") if entry)
    inside = f"{PurePosixPath(source.directory).relative_to(mounts.RESULTS_DIR)}/"
    return {path.removeprefix(inside): int(size) for size, path in entries}


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A directory inside `target` whose content moves into it at the end; a copy that broke off leaves nothing."""
    made = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".partial-", dir=target))
    try:
        yield staging
        for path in staging.iterdir():
            path.rename(target / path.name)
        staging.rmdir()
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        if made:
            target.rmdir()
        raise


def _copy(
    kubectl: Kubectl, source: Source, staging: Path, sizes: Mapping[str, int], console: Console, *, whole: bool
) -> None:
    """All of the directory, or what `sizes` names."""
    # Of a deleted job the whole volume is copied, and with it what lies beside each bundle.
    beside = [path for path in sizes if path in _BESIDE and source.directory != mounts.RESULTS_DIR]
    outside = [f"--directory={mounts.RESULTS_DIR}", *beside] if beside else []
    rest = [path for path in sizes if path not in beside]
    inside = (
        [f"--directory={source.directory}", *([f"--exclude=./{_NOT_OURS}", "."] if whole else rest)] if rest else []
    )
    with tempfile.TemporaryFile() as errors:
        process = kubectl.open(
            "exec", source.pod, f"--container={source.container}", "--",
            "tar", "--create", "--file=-", "--hard-dereference", *outside, *inside,
            stderr=errors.fileno(),
        )  # fmt: skip
        assert process.stdout is not None
        try:
            problem = _extract(process.stdout, staging, sum(sizes.values()), console)
            process.stdout.close()
            code = process.wait(timeout=30)
        finally:
            _stop(process)
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()
    # tar ends with 1 where a file grew while it was read, which is what a running evaluator does.
    if problem or code > (1 if source.live else 0):
        raise UserError(f"the copy from pod `{source.pod}` broke off: {words or problem or f'exit code {code}'}")


def _extract(stream: IO[bytes], staging: Path, total: int, console: Console) -> str:
    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    # Only to be looked at meanwhile: in a log it would be one line, and of a short copy one without a speed.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("copying", total=total)
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    # Who answers for the pod may be hostile. Where links lead the library judges, and that of a Python
                    # before 3.12.11 is deceived (CVE-2025-4517): none is made, so that nothing is written behind one.
                    if member.isreg() or member.isdir():
                        archive.extract(member, staging, filter="data")
                    progress.advance(task, member.size)
            # What tar pads the end with; an unread rest would end it with a broken pipe.
            while stream.read(65536):
                pass
        except (tarfile.TarError, OSError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _verify(staging: Path, sizes: dict[str, int]) -> None:
    """kubectl may end a stream early and still report success: hold what arrived against the listing."""
    wrong = [path for path, size in sizes.items() if not _has_size(staging / path, size)]
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(sizes)} files did not arrive whole, the first is {wrong[0]}. Call the command again."
        )


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _say(console: Console, line: str) -> None:
    console.print(terminal_safe(line), markup=False, highlight=False, soft_wrap=True)
