"""`kubectl nhx explain`: why a job is where it is, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from ..api import pod_facts
from ..api.conditions import NOTICES, ConditionType, RunReason
from ..api.constants import CONTAINER_EVALUATE, CONTAINER_GATE, CONTAINER_HOST, STAGE_CONTAINERS, Isolation, Phase
from ..api.outcome import without_trimmed
from ..api.waits import without_until
from ..client.errors import KubectlError, UserError
from ..client.jobs import Body, Job, pods_of
from ..client.kubectl import Kubectl
from .advice import advice
from .output import age, first_line, say, seconds_since, span, table
from .podwords import PodWords, words_of

LOG_LINES = 10
SEARCHED_LINES = 500
"""How far back the exception is looked for that a container ended of: others went on logging."""
SHOWN_EXCEPTIONS = 2
_AFTER_EXCEPTION = 3
"""Lines after an exception's first, which often hold the point of it."""
SHOWN_EVENTS = 12
_CONTAINERS = (*STAGE_CONTAINERS, CONTAINER_GATE, CONTAINER_EVALUATE, CONTAINER_HOST)
_PLACED = ("placement", "placementReason")
_SENTENCE_ENDS = re.compile(r"; |\. ")

_IS: dict[str, str] = {
    Phase.PENDING: "has not started yet",
    Phase.STAGING: "is bringing its FileSets in",
    Phase.STARTING: "is starting",
    Phase.RUNNING: "is running",
    Phase.SUSPENDED: "is suspended",
    Phase.SUCCEEDED: "has succeeded",
    Phase.FAILED: "has failed",
    Phase.CANCELLED: "was cancelled",
}


@dataclass(frozen=True)
class Event:
    when: str
    about: str
    reason: str
    message: str
    count: int
    warning: bool
    version: int
    """Grows with each write to the cluster: the order of what came within one second."""


@dataclass(frozen=True)
class Tail:
    """The last lines of a container that ended badly."""

    pod: str
    container: str
    lines: list[str]
    errors: list[str]
    """The last exceptions in its log, without their frames."""


@dataclass(frozen=True)
class Explanation:
    job: Job
    headline: str
    cause: Body
    """The condition that explains it; empty if nobody has looked at the job."""
    notes: list[str]
    advice: list[str]
    pods: list[PodWords]
    events: list[Event]
    unread: str
    """Why the events are not shown, if they could not be read."""
    tails: list[Tail]

    def to_dict(self) -> Body:
        return {
            "name": self.job.name,
            "namespace": self.job.namespace,
            "phase": self.job.phase,
            "headline": self.headline,
            "cause": {name: self.cause.get(name) for name in ("type", "status", "reason", "message")},
            "notes": self.notes,
            **{name: self.job.status[name] for name in _PLACED if name in self.job.status},
            "advice": self.advice,
            "conditions": self.job.conditions,
            "pods": [pod.to_dict() for pod in self.pods],
            "events": [
                {name: value for name, value in vars(event).items() if name != "version"} for event in self.events
            ],
            "logs": [vars(tail) for tail in self.tails],
        }


def explain(kubectl: Kubectl, job: Job) -> Explanation:
    kubectl = kubectl.in_namespace(job.namespace)
    pods = pods_of(kubectl, job)
    events, unread = _events(kubectl, job, pods)
    cause = job.cause
    tails = _tails(kubectl, pods)
    errors = "\n".join(line for tail in tails for line in tail.errors)
    return Explanation(
        job=job,
        headline=_headline(job),
        cause=cause,
        notes=_notes(job),
        advice=list(dict.fromkeys(line for each in (cause, *_beside(job)) for line in advice(job, each, errors))),
        pods=words_of(job, pods),
        events=events,
        unread=unread,
        tails=[_unsaid(tail, cause) for tail in tails],
    )


def _headline(job: Job) -> str:
    started = job.status.get("startTime") or job.body["metadata"].get("creationTimestamp")
    ended = job.status.get("completionTime")
    # A newer operator may know phases that this plugin does not.
    words = f"Job {job.name} {_IS.get(job.phase, f'is {job.phase}')}"
    if job.body["metadata"].get("deletionTimestamp"):
        return f"Job {job.name} is being deleted"
    if ended and started:
        return f"{words}, {span(seconds_since(started) - seconds_since(ended))} after its start and {age(ended)} ago"
    return f"{words}, {age(started)} after it was applied"


def _notes(job: Job) -> list[str]:
    """What else a reader wants to know at once."""
    status = job.status
    notes = []
    if job.progress:
        failed = (status.get("progress") or {}).get("failed", 0)
        reward = f", mean reward {status['reward']}" if status.get("reward") else ""
        notes.append(f"{job.progress} rollouts are recorded{reward}" + (f"; {failed} of them failed" if failed else ""))
    notes += _bounds(job)
    if (status.get("attempt") or 1) > 1:
        notes.append(f"this is attempt {status['attempt']}: an earlier one was lost, and what it recorded is kept")
    for name, usage in (status.get("usage") or {}).items():
        if usage.get("failedCalls"):
            calls = usage.get("calls", 0) + usage["failedCalls"] + usage.get("abortedCalls", 0)
            notes.append(f"{usage['failedCalls']} of {calls} calls to model {name} failed")
    if job.egress:
        notes.append(f"{job.egress}; each with the host's token is a line of egress.jsonl in the bundle")
    notes += [f"{entry['type']}: {entry.get('message')}" for entry in _beside(job)]
    location = job.results_location
    if location and job.finished and (status.get("results") or {}).get("path") and _has_recorded(job):
        notes.append(f"its results are in {location}: `kubectl nhx download {job.name} DIR -n {job.namespace}`")
    notes += without_trimmed(job.cause.get("message") or "")[1]
    return notes


def _placed(job: Job) -> str:
    """Where it was placed and why, in short: the status has the whole of what was measured, and on which nodes. Without
    a kernel of its own, what let the job in is what comes after the kernel."""
    status = job.status
    if not status.get("placementReason"):
        return ""
    if status.get("isolation") == Isolation.CONTAINER_ONLY:
        return f"Placed {status.get('placement', '')}: {status['placementReason']}"
    found, *more = _SENTENCE_ENDS.split(status["placementReason"], maxsplit=1)
    return f"Placed {status.get('placement', '')}: {found}{' (in full: status.placementReason)' if more else ''}"


def _has_recorded(job: Job) -> bool:
    """Whether there is more to download than logs, which `kubectl nhx logs` shows."""
    progress = job.status.get("progress") or {}
    return bool(progress.get("done") or progress.get("failed"))


def _bounds(job: Job) -> list[str]:
    """How long it may go on like this."""
    gym = ((job.body.get("spec") or {}).get("target") or {}).get("gym") or {}
    fields: dict[str, str] = {
        Phase.STARTING: "startupTimeoutSeconds",
        Phase.RUNNING: "collectionTimeoutSeconds",
    }
    words: dict[str, str] = {
        Phase.STARTING: "Gym may take up to {} to start",
        Phase.RUNNING: "all rollouts together may take up to {}",
    }
    field = fields.get(job.phase, "")
    return [f"{words[job.phase].format(span(gym[field]))} (spec.target.gym.{field})"] if gym.get(field) else []


def _beside(job: Job) -> list[Body]:
    """What is said beside the job's end or way: that its result lacks something, that its data looks odd, that it could
    not be suspended."""
    refused = job.condition(ConditionType.SUSPENDED)
    not_suspended = [refused] if refused.get("reason") == RunReason.RESULTS_WOULD_BE_LOST else []
    return not_suspended + [job.condition(kind) for kind in (ConditionType.DEGRADED, *NOTICES) if job.is_true(kind)]


def _events(kubectl: Kubectl, job: Job, pods: list[Body]) -> tuple[list[Event], str]:
    """About the job and the pods that there are, the newest last."""
    uids = {job.uid, *(pod["metadata"]["uid"] for pod in pods)}
    try:
        items = kubectl.json("get", "events")["items"]
    except KubectlError as error:
        return [], error.stderr
    found = [_event(item, job) for item in items if (item.get("involvedObject") or {}).get("uid") in uids]
    return sorted(found, key=lambda event: (_moment(event.when), event.version))[-SHOWN_EVENTS:], ""


def _event(item: Body, job: Job) -> Event:
    series = item.get("series") or {}
    last = series.get("lastObservedTime") or item.get("lastTimestamp") or item.get("eventTime") or ""
    about = item["involvedObject"]
    message = (item.get("message") or "").strip()
    return Event(
        # A condition's event bears the time at which its status changed, which may be long before its reason did.
        when=max(last, item["metadata"].get("creationTimestamp") or "", key=_moment),
        about=about.get("name", "") if about.get("kind") == "Pod" else "job",
        reason=item.get("reason", ""),
        message=without_until(message) if job.finished else message,
        count=series.get("count") or item.get("count") or 1,
        warning=item.get("type") == "Warning",
        version=int(item["metadata"].get("resourceVersion") or 0),
    )


def _moment(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp) if timestamp else datetime.min.replace(tzinfo=UTC)


def _tails(kubectl: Kubectl, pods: list[Body]) -> list[Tail]:
    """Of every container that ended badly: mostly one, and its last words are the cause."""
    found = []
    for pod in pods:
        for container in _CONTAINERS:
            ended = pod_facts.state(pod, container).get("terminated") if pod_facts.container(pod, container) else None
            if not ended or not ended.get("exitCode"):
                continue
            name = pod["metadata"]["name"]
            try:
                text = kubectl.text("logs", name, f"--container={container}", f"--tail={SEARCHED_LINES}")
            except UserError:
                continue
            lines = text.rstrip("\n").splitlines()
            found.append(Tail(name, container, lines[-LOG_LINES:], exceptions_in(lines)))
    return found


def exceptions_in(lines: list[str]) -> list[str]:
    """The ends of the last Python tracebacks, in their order."""
    ends = []
    for number, line in enumerate(lines):
        if not line.endswith("Traceback (most recent call last):"):
            continue
        end = next((at for at in range(number + 1, len(lines)) if not lines[at].startswith((" ", "\t"))), len(lines))
        ends.append(lines[end : end + 1 + _AFTER_EXCEPTION])
    return [line for end in ends[-SHOWN_EXCEPTIONS:] for line in end]


def _unsaid(tail: Tail, cause: Body) -> Tail:
    """Without what the cause quotes already."""
    said = cause.get("message", "")
    last = next((line.strip() for line in reversed(tail.lines) if line.strip()), "")
    errors = [line for line in tail.errors if line.strip() not in said]
    return replace(tail, lines=[] if last in said else tail.lines, errors=errors)


def print_explanation(found: Explanation, out: Console) -> None:
    out.print(Text(f"{found.headline}.", style="bold"))
    if found.cause:
        message, _ = without_trimmed(found.cause.get("message") or "no particulars")
        say(out, f"{found.cause.get('reason')}: {message}")
    for note in found.notes:
        say(out, f"- {note}")
    for tail in found.tails:
        _print_lines(out, f"Errors in the log of {tail.pod}/{tail.container}", tail.errors)
    if found.advice:
        _heading(out, "What to do")
        for number, line in enumerate(found.advice, 1):
            say(out, f"{number}. {line}")
    if found.job.conditions:
        _heading(out, "Conditions")
        out.print(table(("TYPE", "HOLDS", "FOR", "REASON", "MESSAGE"), _conditions(found.job.conditions, found.cause)))
    if found.pods:
        _heading(out, "Pods")
        out.print(table(("POD", "ROLE", "DOES"), ((pod.name, pod.role, pod.doing) for pod in found.pods)))
    if found.events or found.unread:
        _heading(out, "Events, the newest last")
        if found.unread:
            say(out, f"they cannot be read: {found.unread}")
        out.print(table(("AGE", "ABOUT", "REASON", "MESSAGE"), _event_rows(found.events)))
    for tail in found.tails:
        _print_lines(out, f"Last lines of {tail.pod}/{tail.container}", tail.lines)
    # Mostly well, and then no part of the answer.
    if placed := _placed(found.job):
        say(out)
        say(out, placed)


def _print_lines(out: Console, heading: str, lines: list[str]) -> None:
    if lines:
        _heading(out, heading)
    for line in lines:
        say(out, f"| {line}")


def _heading(out: Console, words: str) -> None:
    out.print()
    out.print(Text(words, style="bold"))


def _conditions(conditions: Iterable[Body], cause: Body) -> Iterable[tuple[str, ...]]:
    words: dict[str, str] = {"True": "yes", "False": "no"}
    for entry in conditions:
        holds = words.get(entry["status"], "unknown")
        # The cause stands at the top in full.
        message = entry.get("message", "")
        message = "see above" if message and message == cause.get("message") else first_line(message)
        yield entry["type"], holds, age(entry.get("lastTransitionTime")), entry["reason"], message


def _event_rows(events: Iterable[Event]) -> Iterable[tuple[Any, ...]]:
    for event in events:
        times = f" (x{event.count})" if event.count > 1 else ""
        yield f"{age(event.when)}{times}", event.about, event.reason, first_line(event.message)
