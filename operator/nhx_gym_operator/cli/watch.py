"""`kubectl nhx watch`: a job from now to its end: how far it is, its reward so far, and which pod does what."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..api.conditions import AcceptedReason
from ..api.constants import Phase
from ..client.errors import NotFound, TimedOut, UserError
from ..client.jobs import Body, Job, get_job, pods_of
from ..client.kubectl import Kubectl
from ..client.patience import Patience
from .output import Output, age, console, first_line, print_json_line, say, seconds_since, span, table
from .podwords import PodWords, words_of

POLL_SECONDS = 2.0
SEEN_SECONDS = 60.0
"""How long the operator may take to see what was made just after the job: it asks again every few seconds."""
_BAR_WIDTH = 40
_UNSEEN = (AcceptedReason.CONFIG_MAP_NOT_FOUND, AcceptedReason.FILESET_NOT_FOUND, AcceptedReason.FILESET_NOT_RESOLVED)
_NAMED = re.compile(r"(?:ConfigMap|FileSet) '([^']+)'")


@dataclass(frozen=True)
class View:
    """What is shown of a job at one moment."""

    job: Job
    pods: list[PodWords]
    made: Collection[str] = ()
    """Names of what was made for the job just now, which the operator need not have seen yet."""

    def to_dict(self) -> Body:
        status = self.job.status
        known = {name: status[name] for name in ("progress", "reward", "hosts", "attempt") if name in status}
        return {
            "name": self.job.name,
            "namespace": self.job.namespace,
            "phase": self.job.phase,
            "message": self._not_seen_yet or self.job.cause.get("message") or "",
            **known,
            "pods": [pod.to_dict() for pod in self.pods],
        }

    @property
    def line(self) -> str:
        """For a log: one line that changes when something happened."""
        parts = [self.job.phase, self.job.progress, f"reward {self.reward}" if self.reward else ""]
        return "  ".join(part for part in (*parts, self.message) if part)

    @property
    def reward(self) -> str:
        return self.job.status.get("reward") or ""

    @property
    def message(self) -> str:
        """In one line: a failed start quotes the end of Gym's log, and `explain` has it whole."""
        cause = self.job.cause
        return self._not_seen_yet or first_line(
            cause.get("message") or cause.get("reason") or "no operator has looked at the job yet"
        )

    @property
    def _not_seen_yet(self) -> str:
        """In place of the alarm that something does not exist which came after the job; empty if there is none."""
        cause = self.job.cause
        named = _NAMED.findall(cause.get("message", "")) if cause.get("reason") in _UNSEEN else []
        fresh = next((name for name in named if name in self.made), "")
        return f"the operator is about to read {fresh}, which was made with the job" if fresh else ""


def look(kubectl: Kubectl, name: str) -> View:
    job = get_job(kubectl, name)
    return View(job, words_of(job, pods_of(kubectl, job)))


def watch_to_end(kubectl: Kubectl, name: str, timeout: float | None, output: Output, made: Collection[str] = ()) -> Job:
    """The job when it has ended, shown until then. `made`: names of what was made for it just before.

    Raises `TimedOut` after `timeout` seconds, and `NotFound` if the job goes away."""
    errors = Console(stderr=True)
    job = _followed(kubectl, name, timeout, output, made, errors)
    more = "results" if job.phase == Phase.SUCCEEDED else "explain"
    say(errors, f"`kubectl nhx {more} {job.name} --namespace {job.namespace}` shows more")
    return job


def _followed(
    kubectl: Kubectl, name: str, timeout: float | None, output: Output, made: Collection[str], errors: Console
) -> Job:
    seen_by = time.monotonic() + SEEN_SECONDS
    deadline = None if timeout is None else time.monotonic() + timeout
    first = look(kubectl, name)
    with _shown_on(console(), as_json=output is Output.JSON) as show:
        view = first
        while True:
            show(replace(view, made=made) if time.monotonic() < seen_by else view)
            if view.job.finished:
                return view.job
            if deadline is not None and time.monotonic() + POLL_SECONDS > deadline:
                raise TimedOut(
                    f"job `{name}` has not ended within {span(timeout or 0)} ({view.job.says}). It goes on; "
                    f"`kubectl nhx explain {name} --namespace {view.job.namespace}` says where it is."
                )
            time.sleep(POLL_SECONDS)
            view = _look_again(kubectl, first.job, errors)


def _look_again(kubectl: Kubectl, first: Job, errors: Console) -> View:
    """Bears with a cluster that is away for a while, which `first` has shown to be there."""
    patience = Patience()
    while True:
        try:
            view = look(kubectl, first.name)
        except NotFound:
            raise NotFound(f"job `{first.name}` was deleted while it was watched.") from None
        except UserError as error:
            patience.bear(error)
            say(errors, f"the cluster gives no answer, asking again: {str(error).splitlines()[0]}")
            time.sleep(POLL_SECONDS)
            continue
        if view.job.uid != first.uid:
            raise NotFound(f"job `{first.name}` was deleted and made anew; call again to watch the new one.")
        return view


def _shown_on(out: Console, as_json: bool) -> AbstractContextManager[Callable[[View], None]]:
    if as_json:
        return nullcontext(_Changes(lambda view: print_json_line(view.to_dict()), lambda view: view.to_dict()))
    if not out.is_terminal:
        return nullcontext(_Changes(lambda view: say(out, view.line), lambda view: view.line))
    return _Screen(out)


class _Changes:
    """Tells a view only if it differs from the one before."""

    def __init__(self, tell: Callable[[View], None], essence: Callable[[View], object]):
        self._tell = tell
        self._essence = essence
        self._last: object = None

    def __call__(self, view: View) -> None:
        essence = self._essence(view)
        if essence != self._last:
            self._last = essence
            self._tell(view)


class _Screen(AbstractContextManager[Callable[[View], None]]):
    """Redraws in place; the last picture stays."""

    def __init__(self, out: Console):
        self._live = Live(console=out, auto_refresh=False)

    def __enter__(self) -> Callable[[View], None]:
        self._live.start()
        return lambda view: self._live.update(picture(view), refresh=True)

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def picture(view: View) -> RenderableType:
    """Head line, bar, message, pods."""
    job = view.job
    parts: list[RenderableType] = [_head(job), _bar(view), Text(view.message, style="dim")]
    if view.pods:
        rows = [(pod.name, pod.role, pod.doing) for pod in view.pods]
        parts += [Text(), table(("POD", "ROLE", "DOES"), rows)]
    return Group(*parts)


def _head(job: Job) -> Text:
    started = job.status.get("startTime") or job.body["metadata"].get("creationTimestamp")
    ended = job.status.get("completionTime")
    if started and ended:
        lasted = f"after {span(seconds_since(started) - seconds_since(ended))}"
    else:
        lasted = f"for {age(started)}" if started else ""
    return Text.assemble((job.name, "bold"), "  ", (job.phase, "bold"), f"  {lasted}")


def _bar(view: View) -> RenderableType:
    progress = view.job.status.get("progress") or {}
    total, failed = progress.get("total", 0), progress.get("failed", 0)
    line = Table.grid(padding=(0, 1))
    finished = progress.get("done", 0) + failed
    words = [view.job.progress or "no rollout counted yet"]
    words += [f"reward {view.reward}"] if view.reward else []
    words += [f"{failed} failed"] if failed else []
    line.add_row(ProgressBar(total=total or 1, completed=finished, width=_BAR_WIDTH), Text(", ".join(words)))
    return line
