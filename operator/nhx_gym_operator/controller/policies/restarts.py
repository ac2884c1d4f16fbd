"""An evaluator's container that the kubelet starts again in its pod: how often, what is said of it, and when the
attempt is lost after all.

Pod, records and gym hosts stay, so that an accident costs seconds and no attempt. What comes again at once is a matter
for the pauses between attempts, which `spec.backoffLimit` bounds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ...api.constants import CONTAINER_EVALUATE
from ...api.failure_policy import FailureAction, LossCause
from ...api.job import JobSpec
from ...api.outcome import OutcomeError, decode_outcome
from ...api.wire.endpoints import Progress
from .. import podview
from ..attempt import Attempt
from ..clock import parse_time, seconds_since
from ..observation import Observation
from . import deadlines, recorded

Manifest = dict[str, Any]

LIMIT = 2
"""How often an evaluator is started again within one attempt. Ours."""
START_SECONDS = 60.0
"""For the kubelet to do so. Ours: it does at once the first time and after 10 s the second one; a pod whose own sandbox
is gone stays as it is, and nobody says so."""
_SHOWN = 300
"""Characters of a container's last words."""


def are_wanted(spec: JobSpec) -> bool:
    """Whether a job's evaluator may be started again: not where its first loss is to end the job."""
    policy = spec.failure_policy
    found = [policy.on_loss(cause) for cause in (LossCause.OOM_KILLED, LossCause.KILLED)] if policy else []
    ends_job = any(rule and rule[0] is FailureAction.FAIL_JOB for rule in found)
    return limit(spec) > 0 and not ends_job


def limit(spec: JobSpec) -> int:
    """In one attempt, never more than the job bears lost attempts."""
    return min(LIMIT, spec.backoff_limit)


def is_under_way(evaluator: Manifest | None) -> bool:
    """Whether it has ended, is to be started again, and was not yet."""
    return bool(
        evaluator
        and podview.is_started_again(evaluator, CONTAINER_EVALUATE)
        and not podview.is_running(evaluator, CONTAINER_EVALUATE)
    )


def why_lost(spec: JobSpec, evaluator: Manifest, now: datetime) -> str | None:
    """Why an evaluator that the kubelet starts again is lost all the same, as a sentence goes on; None: it is not."""
    deaths = podview.deaths(evaluator, CONTAINER_EVALUATE)
    if deaths > limit(spec):
        return f"; it ended {deaths} times in its place" if deaths > 1 else ""
    if is_under_way(evaluator) and seconds_left(evaluator, now) <= 0:
        return f"; it was not started again within {START_SECONDS:g} s"
    return None


def seconds_left(evaluator: Manifest, now: datetime) -> float:
    """Until one that has ended is given up; 0 or less: now."""
    ended = podview.latest_end(evaluator, CONTAINER_EVALUATE) or {}
    return START_SECONDS - seconds_since(parse_time(ended["finishedAt"]), now) if ended.get("finishedAt") else 0.0


def answer(observation: Observation, attempt: Attempt) -> Progress | None:
    """What the evaluator's present process said last: an earlier one's word is about what is over."""
    said = observation.progress_of(attempt.number)
    if said is None or attempt.evaluator is None or not observation.progress_life:
        return said
    return said if observation.progress_life == podview.life(attempt.evaluator, CONTAINER_EVALUATE) else None


def words_meanwhile(spec: JobSpec, evaluator: Manifest, status: dict[str, Any], now: datetime) -> str:
    """Of an evaluator that is not back at work."""
    time = f"time {podview.deaths(evaluator, CONTAINER_EVALUATE)} of {limit(spec)} at most"
    so_far = recorded.so_far(status)
    kept = f"; {so_far} are recorded and stay" if so_far else ""
    words = f"the evaluator ended without an outcome: {_how(evaluator)}"
    if not is_under_way(evaluator):
        return f"{words}; it was started again in its pod, {time}{kept}"
    ends = deadlines.until(seconds_left(evaluator, now), now, "then the attempt is lost")
    return f"{words}; it is started again in its pod, {time}{kept}{ends}"


def words_afterwards(evaluator: Manifest) -> str:
    """Of one that is, as a sentence goes on; empty if it never ended."""
    if not podview.last_end(evaluator, CONTAINER_EVALUATE):
        return ""
    times = podview.deaths(evaluator, CONTAINER_EVALUATE)
    return f"; the evaluator was started again in its pod (time {times}), after {_how(evaluator)}"


def _how(evaluator: Manifest) -> str:
    ended = podview.latest_end(evaluator, CONTAINER_EVALUATE) or {}
    words = f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}"
    said = ended.get("message", "").strip()
    try:
        # While it lives it says how far it is, for those who look when it was killed.
        said = decode_outcome(said).message
    except OutcomeError:
        pass
    return f"{words}: {said[:_SHOWN]}" if said else words
