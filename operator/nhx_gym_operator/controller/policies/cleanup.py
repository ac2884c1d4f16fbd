"""What becomes of pods when a job is over or being deleted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ...api.constants import CONTAINER_EVALUATE
from .. import podview
from ..clock import parse_time, seconds_since
from ..observation import DeletePod, Observation
from . import restarts

Manifest = dict[str, Any]

LINGER_SECONDS = 60.0
"""After the evaluator's end, hosts have this long to end by themselves, which keeps their logs."""


def of_finished(observation: Observation, now: datetime) -> tuple[tuple[DeletePod, ...], float | None]:
    """Deletions for a finished job, and seconds until there is something to delete. Ended pods stay: their
    logs are worth more than the space. A pod whose own work ended but that still runs is kept up by a
    container that somebody added."""
    running = [pod for pod in observation.pods if not podview.ends_by_itself(pod) and not podview.is_terminating(pod)]
    if not running:
        return (), None
    ends = [
        parse_time(ended["finishedAt"])
        for pod in observation.pods
        if (ended := podview.terminated(pod, CONTAINER_EVALUATE)) and ended.get("finishedAt")
    ]
    left = LINGER_SECONDS - seconds_since(max(ends), now) if ends else 0.0
    if left > 0:
        # An evaluator that the kubelet would start again cannot wait: it would go on with a job that is over.
        return tuple(deletion(pod) for pod in running if restarts.is_under_way(pod)), left
    return tuple(deletion(pod) for pod in running), None


def of_deleted(observation: Observation) -> tuple[DeletePod, ...]:
    """A job that is being deleted stops at once, even where a finalizer holds the job itself."""
    return of_all(observation.pods)


def of_all(pods: Iterable[Manifest]) -> tuple[DeletePod, ...]:
    """The deletions of those that were not told to end."""
    return tuple(deletion(pod) for pod in pods if not podview.is_terminating(pod))


def of_unended(observation: Observation) -> tuple[list[Manifest], list[DeletePod]]:
    """The pods that have not ended, and the deletions of those that were not told to."""
    return [pod for pod in observation.pods if not podview.has_ended(pod)], of_running(observation.pods)


def of_running(pods: Iterable[Manifest]) -> list[DeletePod]:
    """The deletions of those that have not ended and were not told to."""
    return [deletion(pod) for pod in pods if not podview.has_ended(pod) and not podview.is_terminating(pod)]


def deletion(pod: Manifest) -> DeletePod:
    return DeletePod(pod["metadata"]["namespace"], podview.name(pod), podview.uid(pod))
