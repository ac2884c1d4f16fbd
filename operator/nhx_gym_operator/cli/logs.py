"""`kubectl nhx logs`: the logs of every container that took part in a job, also after it failed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Protocol

import typer
from rich.console import Console

from ..api import pod_facts
from ..api.constants import CONTAINER_EVALUATE, CONTAINER_GATE, CONTAINER_HOST, STAGE_CONTAINERS, Placement, Role
from ..api.wire.mounts import EVALUATOR_LOG
from ..api.wording import terminal_safe
from ..client.download import download
from ..client.errors import KubectlError, NotFound, UserError
from ..client.jobs import (
    DELETED,
    Body,
    Job,
    get_job,
    pods_of,
)
from ..client.kubectl import Kubectl
from ..client.patience import Patience
from ..client.reader import FEW_FILES_SECONDS
from .output import print_json_line

POLL_SECONDS = 2.0
"""How often a follower looks for pods that were not there before."""
_DRAIN_PAUSE_SECONDS = 0.1
DRAIN_SECONDS = 30.0
"""How long the last lines may take after the job has finished."""
LOGS_TIMEOUT_SECONDS = 300.0


class Part(StrEnum):
    STAGE = "stage"
    EVALUATOR = "evaluator"
    GATE = "gate"
    HOST = "host"


# In the order in which a job passes through them.
CONTAINERS = {
    Part.STAGE: STAGE_CONTAINERS,
    Part.EVALUATOR: (CONTAINER_EVALUATE,),
    Part.GATE: (CONTAINER_GATE,),
    Part.HOST: (CONTAINER_HOST,),
}


@dataclass(frozen=True)
class Source:
    """One container of one pod."""

    pod: str
    container: str
    state: str
    has_log: bool
    ended: bool = True

    @property
    def header(self) -> str:
        return f"==> {self.pod}/{self.container} ({self.state}) <=="

    @property
    def key(self) -> tuple[str, str]:
        return self.pod, self.container


class Sink(Protocol):
    """Where lines go."""

    def header(self, source: Source) -> None: ...

    def line(self, source: Source, text: str) -> None: ...

    def follow(self, source: Source, text: str) -> None:
        """A line that came while others come too."""


class TextSink:
    """A host's lines are its environment's word, and steer nobody's terminal."""

    def header(self, source: Source) -> None:
        typer.echo(terminal_safe(source.header))

    def line(self, source: Source, text: str) -> None:
        typer.echo(terminal_safe(text))

    def follow(self, source: Source, text: str) -> None:
        typer.echo(f"{source.pod}/{source.container} | {terminal_safe(text)}")


class JsonSink:
    """A value for each line."""

    def header(self, source: Source) -> None:
        pass

    def line(self, source: Source, text: str) -> None:
        print_json_line({"pod": source.pod, "container": source.container, "line": text})

    follow = line


def sources_of(pods: list[Body], role: Part | None = None) -> list[Source]:
    """The containers of the job's pods that `role` means (None: all), in a run's own order."""
    wanted = [container for part in ([role] if role else CONTAINERS) for container in CONTAINERS[part]]
    return [
        _source(pod, container)
        for pod in pods
        for container in wanted
        if pod_facts.container(pod, container) is not None
    ]


def _source(pod: Body, container: str) -> Source:
    state = pod_facts.state(pod, container)
    has_log = "running" in state or "terminated" in state
    return Source(pod["metadata"]["name"], container, _describe(pod, state), has_log, "terminated" in state)


def _describe(pod: Body, state: Body) -> str:
    if "terminated" in state:
        ended = state["terminated"]
        return f"ended, exit code {ended.get('exitCode')}, {ended.get('reason') or 'no reason given'}"
    if "running" in state:
        return "running"
    waiting = state.get("waiting") or {}
    detail = ": ".join(part for part in (waiting.get("reason"), waiting.get("message")) if part)
    return f"not started, {detail or (pod.get('status') or {}).get('phase') or 'Pending'}"


def print_logs(
    kubectl: Kubectl, job: Job, role: Part | None, tail: int | None, sink: Sink, image: str | None, errors: Console
) -> None:
    """Raises `NotFound` if there was no log to print."""
    pods = pods_of(kubectl, job)
    sources = sources_of(pods, role)
    is_lacking = role in (None, Part.EVALUATOR) and lacks_evaluator(job, pods)
    if not sources and not is_lacking:
        raise NotFound(nothing_left(job, pods, role))
    results = kubectl
    kubectl = kubectl.in_namespace(job.namespace)
    printed, failures = 0, []
    for source in sources:
        sink.header(source)
        if not source.has_log:
            continue
        try:
            text = kubectl.text(*_log_arguments(source, tail), timeout=LOGS_TIMEOUT_SECONDS)
        except UserError as error:
            failures.append(error)
            typer.echo(
                f"the log of {source.pod}/{source.container} could not be read: {terminal_safe(str(error))}", err=True
            )
        else:
            printed += 1
            _print_lines(source, text, sink)
    if is_lacking:
        try:
            _print_kept_evaluator(results, job, tail, sink, image, errors)
        except UserError as error:
            if not printed:
                raise
            typer.echo(terminal_safe(str(error)), err=True)
        return
    if failures and not printed:
        raise failures[0]
    if not printed:
        raise NotFound(f"no container of job `{job.name}` has written a log ({job.says}).")


def _print_lines(source: Source, text: str, sink: Sink) -> None:
    for line in text.rstrip("\n").split("\n"):
        sink.line(source, line)


def are_gone(kubectl: Kubectl, job: Job) -> bool:
    """Whether the job has ended, its pods are no more, and its results are where they can still be read."""
    kept = job.claim is not None or job.is_in_bucket
    ended = job.finished or job.phase == DELETED
    return kept and ended and bool(job.status.get("attempt")) and not pods_of(kubectl, job)


def lacks_evaluator(job: Job, pods: list[Body]) -> bool:
    """Whether the pod of a finished job's last evaluator is gone while others are there. An evaluator that still runs
    when its job ends, since no sandbox would do, is told to end, and a pod that is told to goes with its logs."""
    attempt = job.status.get("attempt")
    return (
        job.finished
        and bool(pods and attempt)
        and not any(pod_facts.container(pod, CONTAINER_EVALUATE) for pod in pods if pod_facts.attempt(pod) == attempt)
    )


def _print_kept_evaluator(
    kubectl: Kubectl, job: Job, tail: int | None, sink: Sink, image: str | None, errors: Console
) -> None:
    """The log of an evaluator whose pod is gone, from the job's results."""
    gone = f"the evaluator's pod of job `{job.name}` is gone, and a pod's logs go with it."
    if job.claim is None and not job.is_in_bucket:
        raise NotFound(f"{gone} With spec.results.persistentVolumeClaim its log is kept there.")
    print_bundle_logs(kubectl, job, Part.EVALUATOR, tail, sink, image, errors, gone)


def print_bundle_logs(
    kubectl: Kubectl,
    job: Job,
    role: Part | None,
    tail: int | None,
    sink: Sink,
    image: str | None,
    errors: Console,
    gone: str = "",
) -> None:
    """What was logged into the bundle, for a job whose pods are gone, or some of them, as `gone` says. Raises
    `NotFound` if that is nothing."""
    gone = gone or nothing_left(job, [], None)
    if role in (Part.STAGE, Part.GATE):
        raise NotFound(
            f"the pods of job `{job.name}` are gone, and with them the log of `{role}`: only those of the evaluator "
            f"and of Gym are kept with the results ({job.says})."
        )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "bundle"
        try:
            download(kubectl, job, target, image, FEW_FILES_SECONDS, errors, only=_kept_log(job, role))
        except NotFound:
            raise NotFound(gone) from None
        except UserError as error:
            raise UserError(f"{gone}\nReading it here failed: {error}") from None
        for file in sorted(target.rglob("*.log")):
            path = str(file.relative_to(target))
            source = Source(f"results of {job.name}", path, "kept with them", has_log=True)
            sink.header(source)
            lines = file.read_text(errors="replace").rstrip("\n").split("\n")
            _print_lines(source, "\n".join(lines if tail is None else lines[len(lines) - tail :]), sink)


def _kept_log(job: Job, role: Part | None) -> Callable[[str], bool]:
    """Whether a file of the results is a log of that part. A colocated evaluator ran Gym itself."""
    of_both = role is None or (role is Part.EVALUATOR and job.status.get("placement") == Placement.COLOCATED)

    def wanted(path: str) -> bool:
        is_evaluators = PurePosixPath(path).name == PurePosixPath(EVALUATOR_LOG).name
        return path.endswith(".log") and (of_both or is_evaluators == (role is Part.EVALUATOR))

    return wanted


def _log_arguments(source: Source, tail: int | None) -> tuple[str, ...]:
    limit = () if tail is None else (f"--tail={tail}",)
    return ("logs", source.pod, f"--container={source.container}", *limit)


def nothing_left(job: Job, pods: list[Body], role: Part | None) -> str:
    """Why there is no log, and where its lines may still be."""
    if role is Part.HOST and any(pod_facts.role(pod) == Role.COLOCATED for pod in pods):
        return (
            f"job `{job.name}` is colocated: Gym runs inside the evaluator's container. Use --role evaluator. "
            f"{_in_the_bundle(job)}"
        )
    if not job.finished and not pods:
        return f"job `{job.name}` has no pods yet ({job.says}). Pass --follow to wait for them."
    if pods:
        names = ", ".join(pod["metadata"]["name"] for pod in pods)
        return f"none of the pods of job `{job.name}` has a container of the role `{role}`: {names}."
    return f"no pod of job `{job.name}` is left, and a pod's logs go with it ({job.says}). {_in_the_bundle(job)}"


def _in_the_bundle(job: Job) -> str:
    if job.claim is None and not job.is_in_bucket:
        return "Its results went with its pods: spec.results.persistentVolumeClaim or objectStore keeps them longer."
    return (
        f"`kubectl nhx download {job.name} DIR --namespace {job.namespace}` copies the bundle: DIR/gym_run holds what "
        "each rollout did (rollouts.jsonl, rollouts_failures.jsonl, model_calls)."
    )


class Follower:
    """Prints the lines of all containers as they come, and takes up containers that start later."""

    def __init__(self, kubectl: Kubectl, job: Job, role: Part | None, tail: int | None, sink: Sink):
        self._kubectl = kubectl.in_namespace(job.namespace)
        self._job = job
        self._role = role
        self._tail = tail
        self._sink = sink
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._announced = ""
        self._patience = Patience()

    def run(self) -> None:
        """Returns when the job has finished and its last lines are printed."""
        try:
            while not self._stepped():
                time.sleep(POLL_SECONDS)
            self._drain()
        finally:
            for stream in self._streams.values():
                stream.stop()

    def _stepped(self) -> bool:
        """Whether the job has finished; not, while the cluster gives no answer."""
        try:
            finished = self._step()
        except UserError as error:
            self._patience.bear(error)
            self._announce(f"the cluster gives no answer, asking again: {str(error).splitlines()[0]}")
            return False
        self._patience.answered()
        return finished

    def _step(self) -> bool:
        job = get_job(self._kubectl, self._job.name)
        if job.uid != self._job.uid:
            raise NotFound(f"job `{job.name}` was deleted and made anew; call again to follow the new one.")
        pods = pods_of(self._kubectl, job)
        sources = {source.key: source for source in sources_of(pods, self._role) if source.has_log}
        for key, stream in self._streams.items():
            self._announce(stream.take_up(sources.get(key)))
        for key, source in sources.items():
            if key not in self._streams:
                self._streams[key] = _Stream(self._kubectl, source, self._tail, self._tell)
        if job.finished and not self._streams:
            raise NotFound(nothing_left(job, pods, self._role))
        if not self._streams:
            self._announce(f"waiting for job `{job.name}` ({job.says})")
        return job.finished

    def _announce(self, message: str) -> None:
        if message and message != self._announced:
            self._announced = message
            print(terminal_safe(message), file=sys.stderr, flush=True)

    def _tell(self, source: Source, text: str) -> None:
        with self._lock:
            self._sink.follow(source, text)

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while not all(stream.done for stream in self._streams.values()) and time.monotonic() < deadline:
            for stream in self._streams.values():
                stream.join(deadline - time.monotonic())
            self._stepped()
            time.sleep(_DRAIN_PAUSE_SECONDS)


class _Stream:
    """One container's lines as they come. What breaks off is taken up again behind the last line that came; the log is
    done once it was read to its end after the container's own."""

    def __init__(self, kubectl: Kubectl, source: Source, tail: int | None, tell: Callable[[Source, str], None]):
        self.done = False
        self._kubectl = kubectl
        self._tell = tell
        self._limit = () if tail is None else (f"--tail={tail}",)
        self._last = ""
        self._open(source)

    def take_up(self, source: Source | None) -> str:
        """Looks whether it broke off; what to say of that. `source` is None if the pod is gone. Raises `KubectlError`
        if the user may not read it."""
        if self.done or self._thread.is_alive():
            return ""
        code, words = self._process.wait(), self._words()
        error = KubectlError(self._arguments, words) if code else None
        if error and error.forbidden:
            self.done = True
            raise error
        if source is None or (self._source.ended and not error):
            self.done = True
            return ""
        self._open(source)
        return (
            f"the log of {source.pod}/{source.container} broke off, taking it up again: {error.stderr}" if error else ""
        )

    def join(self, seconds: float) -> None:
        self._thread.join(max(0.0, seconds))

    def stop(self) -> None:
        self._process.terminate()

    def _open(self, source: Source) -> None:
        self._source = source
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # it is read when the process has ended
        limit = (f"--since-time={self._last}",) if self._last else self._limit
        self._arguments = (*_log_arguments(source, None), *limit, "--timestamps", "--follow")
        self._process = self._kubectl.open(*self._arguments, stderr=self._errors.fileno())
        self._thread = threading.Thread(target=self._pump, args=(self._process, self._last), daemon=True)
        self._thread.start()

    def _pump(self, process: subprocess.Popen[bytes], known: str) -> None:
        """Lines up to the time `known` came before: the API counts --since-time in whole seconds."""
        assert process.stdout is not None
        for line in process.stdout:
            stamp, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
            if _moment(stamp) > _moment(known):
                self._last = stamp
                self._tell(self._source, text)

    def _words(self) -> str:
        with self._errors as errors:
            errors.seek(0)
            return errors.read().decode(errors="replace").strip()


def _moment(stamp: str) -> tuple[str, str]:
    """Seconds and nanoseconds of `2026-11-30T04:46:03.12Z`, which has as many digits as it takes."""
    return stamp[:19], stamp[19:].strip(".Z").ljust(9, "0")
