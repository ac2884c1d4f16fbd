"""What a way of collecting rollouts offers to the rest of the evaluator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self

from ..gym_logs import GymEnd
from ..rollouts import Failure, Rollout, RolloutKey

Record = Callable[[Rollout, Mapping[str, Any] | Failure], Awaitable[None]]
"""Called once per rollout that ended: with Gym's result as it came, or with why there is none."""
AGGREGATE_TIMEOUT_S = 600.0
"""How long Gym's aggregates are waited for, whichever way they come."""


class AggregatesMissing(RuntimeError):
    """Gym's own aggregates could not be had; says why."""


class Collector(AbstractAsyncContextManager["Collector"], Protocol):
    """Gym's servers, from entering (they are ready) to leaving (they are gone, or told to go)."""

    async def __aenter__(self) -> Self: ...

    async def collect(self, rollouts: Sequence[Rollout], record: Record, is_spent: Callable[[], bool]) -> None:
        """Run the rollouts, and begin no other once `is_spent`. A failed one costs only itself. A rollout that is
        not recorded when this returns or is cancelled was not collected. Raises `JobFailed` when Gym is beyond use."""
        ...

    async def aggregate(
        self, rollouts: Sequence[Rollout], results: Mapping[RolloutKey, Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Gym's aggregates over the results of exactly these rollouts, in the shape of its
        `rollouts_aggregate_metrics.json`: one entry per agent. All results together may be too large to be
        held. Raises `AggregatesMissing`."""
        ...

    async def ended(self) -> GymEnd:
        """How Gym ended. Asked once, after leaving; may wait, within the job's grace, until it has."""
        ...
