"""Whether an attempt is lost, and how: its evaluator ended without an outcome, is gone, or is not heard of any more."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ...api.conditions import RunReason
from ...api.constants import CONTAINER_EVALUATE
from .. import podview
from ..attempt import Attempt, last_evaluator
from ..clock import seconds_since
from ..observation import Observation
from . import evaluator_end, nodes, restarts

Manifest = dict[str, Any]

REPORT_SECONDS = 30.0
"""For a kubelet to report the end of a pod whose grace period is over. Ours: it takes seconds, on a busy node more."""
_NEVER_BEGAN = frozenset({"StartError", "ContainerCannotRun"})
"""A container whose command cannot be run: the message is the runtime's then, and no outcome."""


def find(observation: Observation, attempt: Attempt, now: datetime) -> str | None:
    """How an attempt whose pods existed was lost; None while it may still end by itself."""
    evaluator = attempt.evaluator
    if evaluator is None:
        why = _disruption(last_evaluator(observation, attempt))
        return f"the evaluator pod of attempt {attempt.number} is gone" + (f": {why}" if why else "")
    if podview.has_ended(evaluator):
        return how_it_ended(evaluator, podview.terminated(evaluator, CONTAINER_EVALUATE))
    if podview.is_terminating(evaluator):
        # It has its grace period to write an outcome; its end or its disappearance comes as an event.
        return None if seconds_to_report(evaluator, now) > 0 else unreported(evaluator)
    timeouts = observation.installation.settings.timeouts
    if nodes.is_given_up(evaluator, timeouts, now):
        return nodes.words_of(evaluator, timeouts, now)
    ended = podview.latest_end(evaluator, CONTAINER_EVALUATE)
    if podview.is_started_again(evaluator, CONTAINER_EVALUATE):
        why = restarts.why_lost(observation.job.spec, evaluator, now)
        return None if why is None else how_it_ended(evaluator, ended) + why
    return how_it_ended(evaluator, ended) if podview.terminated(evaluator, CONTAINER_EVALUATE) else None


def looks_again_after(observation: Observation, attempt: Attempt, now: datetime) -> list[float]:
    """Seconds until an evaluator whose node may be away, or that nobody starts again, is taken for lost."""
    evaluator = attempt.evaluator
    if evaluator is None:
        return []
    if podview.is_terminating(evaluator):
        return [max(0.0, seconds_to_report(evaluator, now))]
    if restarts.is_under_way(evaluator):
        return [max(0.0, restarts.seconds_left(evaluator, now))]
    ends = nodes.given_up_at(evaluator, observation.installation.settings.timeouts, now)
    return [seconds_since(now, ends)] if ends and ends > now else []


def seconds_to_report(pod: Manifest, now: datetime) -> float:
    """How long a pod that was told to end may still take to be reported as ended; 0 or less: its node is away."""
    over = podview.grace_over(pod)
    return REPORT_SECONDS - seconds_since(over, now) if over else REPORT_SECONDS


def how_it_ended(pod: Manifest, ended: dict[str, Any] | None) -> str:
    """One clause on a pod that ended without saying more itself."""
    name = podview.name(pod)
    status = pod.get("status", {})
    # The kubelet's own reason, such as an eviction's, says more than the signal by which it was carried out.
    words = ": ".join(filter(None, (status.get("reason"), status.get("message")))) or _disruption(pod)
    words = words or _own_words(pod)
    if not words and ended:
        words = f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}"
        if ended.get("reason") in _NEVER_BEGAN:
            words = f"{words}: {ended.get('message', '').strip()}"
    return f"pod {name!r} ended without an outcome: {words or 'no reason given'}"


def unreported(pod: Manifest) -> str:
    """What is to be said of a pod that was told to end and of whose end nobody speaks."""
    why = _disruption(pod)
    node = pod["spec"].get("nodeName")
    return (
        f"pod {podview.name(pod)!r} was told to end{f' ({why})' if why else ''}, its grace period is over, and node "
        f"{node!r} does not say that it has ended"
    )


def _own_words(pod: Manifest) -> str:
    """Why the attempt, and not the job, ended, as the evaluator said; empty if it did not come to say so."""
    said = evaluator_end.last_outcome(pod)
    return said.message if said and said.reason == RunReason.EVALUATOR_LOST else ""


def _disruption(pod: Manifest | None) -> str:
    """Why the cluster took the pod away, in its own words; empty if it did not."""
    entry = podview.disruption(pod) if pod else {}
    return ": ".join(filter(None, (entry.get("reason"), entry.get("message"))))
