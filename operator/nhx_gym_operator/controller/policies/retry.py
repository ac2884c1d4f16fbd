"""When an attempt is lost, and whether there is a next one.

A lost attempt is no verdict on the job: a node went away, someone deleted a pod, memory ran out. What
was recorded is on the claim, and the next attempt collects only the rest. With an emptyDir the records
are gone too, and collecting them again would be a second bill that nobody asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from ...api.conditions import ConditionType, RunReason
from ...api.constants import CONTAINER_EVALUATE
from ...api.failure_policy import FailureAction
from ...api.wire.endpoints import Progress, Stage
from .. import podview
from ..attempt import Attempt, last_evaluator
from ..clock import format_time, parse_time, seconds_since
from ..observation import Observation
from . import backoff, evaluator_end, kept_outcome, loss_cause, nodes, restarts

Manifest = dict[str, Any]


REPORT_SECONDS = 30.0
"""For a kubelet to report the end of a pod whose grace period is over. Ours: it takes seconds, on a busy node more."""


_NEVER_BEGAN = frozenset({"StartError", "ContainerCannotRun"})
"""A container whose command cannot be run: the message is the runtime's then, and no outcome."""


@dataclass(frozen=True)
class Verdict:
    """What follows from a lost attempt: the end of the job, or another attempt."""

    lost: int
    """Attempts of the job that were lost and count, this one too."""
    ignored: int
    """Those that a rule of the job has not counted."""
    reason: StrEnum
    message: str
    again_at: datetime | None = None
    """When the next attempt may start. None: there is none."""


def find_loss(observation: Observation, attempt: Attempt, now: datetime) -> str | None:
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


def judge(observation: Observation, attempt: Attempt, loss: str, now: datetime) -> Verdict:
    """Another attempt after a pause, unless records were lost with the evaluator, a rule of the job ends it at such a
    loss, or too many attempts were lost."""
    spec, status = observation.job.spec, observation.job.status
    cause = loss_cause.find(observation, attempt)
    action, where = (spec.failure_policy and spec.failure_policy.on_loss(cause)) or (FailureAction.COUNT, "")
    is_ignored = action is FailureAction.IGNORE
    lost = (status.lost_attempts or 0) + (not is_ignored)
    ignored = (status.ignored_attempts or 0) + is_ignored
    gone = _what_is_gone(observation, attempt)
    if gone:
        return Verdict(lost, ignored, RunReason.RESULTS_LOST, f"{loss}{gone}")
    if action is FailureAction.FAIL_JOB:
        words = f"{loss}; {where} ends the job at an attempt that was lost by {cause}"
        return Verdict(lost, ignored, RunReason.FAILURE_POLICY, words)
    if lost > spec.backoff_limit and not is_ignored:
        words = f"{loss}; {lost} attempts were lost, and spec.backoffLimit is {spec.backoff_limit}"
        return Verdict(lost, ignored, RunReason.BACKOFF_LIMIT_EXCEEDED, words)
    # The pauses grow with each loss all the same: what goes on for ever is to cost little.
    again_at = now + timedelta(seconds=backoff.seconds_after(lost + ignored))
    words = f"{loss}; attempt {attempt.number + 1} follows at {format_time(again_at)}"
    words += f"; not counted against spec.backoffLimit, since {where} ignores {cause}" if is_ignored else ""
    return Verdict(lost, ignored, RunReason.EVALUATOR_LOST, words, again_at)


def seconds_left(status: dict[str, Any], now: datetime) -> float:
    """Of the pause before the next attempt; 0 or less without one."""
    again_at = status.get("nextAttemptTime")
    return seconds_since(now, parse_time(again_at)) if again_at else 0.0


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


def _own_words(pod: Manifest) -> str:
    """Why the attempt, and not the job, ended, as the evaluator said; empty if it did not come to say so."""
    said = evaluator_end.last_outcome(pod)
    return said.message if said and said.reason == RunReason.EVALUATOR_LOST else ""


def _disruption(pod: Manifest | None) -> str:
    """Why the cluster took the pod away, in its own words (condition `DisruptionTarget`); empty if it did not."""
    entry = podview.condition(pod, "DisruptionTarget") if pod else None
    if entry is None or entry["status"] != "True":
        return ""
    return ": ".join(filter(None, (entry.get("reason"), entry.get("message"))))


def unreported(pod: Manifest) -> str:
    """What is to be said of a pod that was told to end and of whose end nobody speaks."""
    why = _disruption(pod)
    node = pod["spec"].get("nodeName")
    return (
        f"pod {podview.name(pod)!r} was told to end{f' ({why})' if why else ''}, its grace period is over, and node "
        f"{node!r} does not say that it has ended"
    )


def _what_is_gone(observation: Observation, attempt: Attempt) -> str:
    """How the records of rollouts that may have been paid for were lost, as a sentence goes on; empty if they stand."""
    if not keeps_results(observation):
        if not may_have_collected(observation, attempt):
            return ""
        store = observation.job.spec.results.object_store
        brought = " (unless the bundle had been brought to the object store by then)" if store else ""
        advice = "to survive this, set spec.results.persistentVolumeClaim"
        return f", and with it the emptyDir that held the results{brought}; {advice}"
    if not kept_outcome.has_claim(observation) and may_have_collected(observation, attempt):
        return ", and so is the claim that held the results"
    recorded = observation.job.status.progress
    if kept_outcome.holds_nothing(attempt) and recorded and recorded.done + recorded.failed:
        return f", though {recorded.done + recorded.failed} rollouts were recorded: whoever emptied it lost them"
    return ""


def keeps_results(observation: Observation) -> bool:
    return observation.job.spec.results.persistent_volume_claim is not None


def may_have_collected(observation: Observation, attempt: Attempt) -> bool:
    """Whether rollouts may have been paid for. Only what this process saw itself can show that none were:
    an operator that was away does not know."""
    last_seen = last_evaluator(observation, attempt)
    if last_seen is None or _was_running(observation):
        return True
    if podview.restarts(last_seen, CONTAINER_EVALUATE):
        # What its present process says is no word on what the one before it did.
        return True
    said = evaluator_end.last_outcome(last_seen)
    progress = said.progress if said else observation.progress_of(attempt.number)
    if progress is not None:
        return _collected(progress)
    return podview.has_started(last_seen, CONTAINER_EVALUATE)


def _collected(progress: Progress) -> bool:
    return progress.stage is not Stage.STARTING or progress.done + progress.failed > 0


def _was_running(observation: Observation) -> bool:
    conditions = observation.job.status.conditions or ()
    return any(entry.type == ConditionType.RUNNING and entry.status == "True" for entry in conditions)
