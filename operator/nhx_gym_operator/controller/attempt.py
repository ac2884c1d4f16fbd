"""Which attempt a job is in, and which of its pods there are.

The status holds the highest attempt whose pods were seen to exist, and is written after they do. So a
missing pod of that attempt was lost, and a missing pod of the next one was never made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import podview
from .observation import Observation

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """`number` is 0 before the first."""

    number: int
    evaluator: Manifest | None = None
    hosts: tuple[Manifest, ...] = ()
    reader: Manifest | None = None
    """What reads the outcome of an evaluator that is gone."""

    @property
    def pods(self) -> tuple[Manifest, ...]:
        return (*((self.evaluator,) if self.evaluator else ()), *self.hosts)


def current(observation: Observation) -> Attempt:
    seen = observation.job.status.attempt or 0
    pods = [pod for pod in observation.pods if not _withdrawn(pod, seen)]
    number = max([seen, *(podview.attempt(pod) for pod in pods)])
    own = [pod for pod in pods if podview.attempt(pod) == number]
    return Attempt(
        number=number,
        evaluator=next(filter(podview.is_evaluator, own), None),
        hosts=tuple(pod for pod in own if podview.is_host(pod)),
        reader=next(filter(podview.is_reader, own), None),
    )


def last_evaluator(observation: Observation, attempt: Attempt) -> Manifest | None:
    """The attempt's evaluator pod, or what this process last saw of it before it was gone."""
    if attempt.evaluator is not None:
        return attempt.evaluator
    for pod in reversed(observation.ghosts):
        if podview.attempt(pod) == attempt.number and podview.is_evaluator(pod):
            return pod
    return None


def withdrawn(observation: Observation) -> tuple[Manifest, ...]:
    """Pods on their way out whose sibling was refused: their names are taken until they are gone."""
    seen = observation.job.status.attempt or 0
    return tuple(pod for pod in observation.pods if _withdrawn(pod, seen))


def _withdrawn(pod: Manifest, seen: int) -> bool:
    return podview.is_terminating(pod) and podview.attempt(pod) > seen
