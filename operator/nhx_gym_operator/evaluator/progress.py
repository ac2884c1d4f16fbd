"""How far the job is: one object that collection writes and the API reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ..api.wire.endpoints import EgressUse, Notice, Progress, Stage

MAX_MESSAGE = 800


def utc(moment: float) -> str:
    """A Unix time as a status shows times."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class ProgressState:
    """Counts of rollouts. `message` says what is being waited for."""

    attempt: int
    hosts: int = 0
    stage: Stage = Stage.STARTING
    total: int = 0
    done: int = 0
    failed: int = 0
    hosts_ready: int = 0
    message: str = ""
    again: str = ""
    """Which failed rollouts are run once more, while they are."""
    notices: list[Notice] = field(default_factory=list)
    also: Callable[[], list[Notice]] = list
    """Notices that come and go while the job runs."""
    quiet: Callable[[], str] = str
    """What is to be said while nothing comes; empty while something does."""
    egress: Callable[[], EgressUse | None] = lambda: None
    """What the sandbox asked of other hosts, so far."""
    images: dict[str, str] = field(default_factory=dict)
    """Image digest by role: the operator says so when it asks, since only it can know."""
    _reward_sum: float = 0.0

    def recorded(self, reward: float) -> None:
        """One more rollout with a reward."""
        self.done += 1
        self._reward_sum += reward

    def made_good(self, reward: float) -> None:
        """One that had failed was run again, and has a reward now."""
        self.failed -= 1
        self.recorded(reward)

    def taken_back(self, reward: float) -> None:
        """One that was recorded turned out to be none."""
        self.done, self.failed = self.done - 1, self.failed + 1
        self._reward_sum -= reward

    def failed_one(self) -> None:
        """One more rollout without."""
        self.failed += 1

    def snapshot(self) -> Progress:
        """The wire's form, with the running mean over the rollouts done."""
        return Progress(
            stage=self.stage,
            attempt=self.attempt,
            done=self.done,
            failed=self.failed,
            total=self.total,
            mean_reward=self._reward_sum / self.done if self.done else None,
            hosts_ready=self.hosts_ready,
            hosts=self.hosts,
            message="; ".join(filter(None, (self.again, self.message, self.quiet())))[:MAX_MESSAGE],
            notices=[*self.notices, *self.also()],
            egress=self.egress(),
        )
