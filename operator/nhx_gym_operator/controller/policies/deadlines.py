"""How long a job waits for what others have to mend, and the words with which such a wait ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...api import waits
from .. import podview
from ..clock import format_end, seconds_since
from ..settings import Timeouts

Manifest = dict[str, Any]


def until(seconds_left: float, now: datetime, bound: str) -> str:
    """What a message about a wait ends with, which takes so much longer."""
    return waits.until(format_end(seconds_left, now), bound)


@dataclass(frozen=True)
class Deadline:
    """The administrator's bound of one kind of wait."""

    seconds: float
    setting: str

    def __str__(self) -> str:
        return f"{self.seconds:g} s (the operator's setting {self.setting})"

    def seconds_left(self, since: datetime, now: datetime) -> float:
        """0 or less once it is over."""
        return self.seconds - seconds_since(since, now)

    def until(self, seconds_left: float, now: datetime) -> str:
        """What a message about the wait ends with."""
        return until(seconds_left, now, f"the operator's setting {self.setting}")

    def still_so(self, message: str) -> str:
        """What was wrong all the time, as the reason of an end."""
        return f"{message}; still so after {self}"


def of_inputs(timeouts: Timeouts) -> Deadline:
    return Deadline(timeouts.wait_for_inputs_seconds, "timeouts.waitForInputsSeconds")


def of_admission(timeouts: Timeouts) -> Deadline:
    return Deadline(timeouts.pod_admission_seconds, "timeouts.podAdmissionSeconds")


def of_pods(timeouts: Timeouts) -> Deadline:
    """For pods to start, and for pods that are in the way to end."""
    return Deadline(timeouts.pod_start_seconds, "timeouts.podStartSeconds")


def seconds_left_to_end(pods: Iterable[Manifest], timeouts: Timeouts, now: datetime) -> float:
    """How long the end of these pods is still waited for: a node that is away never reports it. Their own grace
    periods come first."""
    due = max((podview.grace_over(pod) or now for pod in pods), default=now)
    return of_pods(timeouts).seconds_left(due, now)
