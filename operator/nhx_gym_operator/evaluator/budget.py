"""What a job's model calls may cost, all models together, over all attempts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..api.conditions import RunReason
from ..api.wire.endpoints import ModelUsage
from ..api.wire.plans import Bound, EvaluatorPlan
from .metering import calls_of


class Spent(NamedTuple):
    """That a job has used what it may: the reason that it ends with, the error code that a call gets, and words."""

    reason: RunReason
    code: str
    words: str


@dataclass(frozen=True)
class Budget:
    """The bounds of one job; None: unbounded."""

    calls: Bound | None = None
    tokens: Bound | None = None
    model_seconds: Bound | None = None
    concurrent_calls: Bound | None = None

    @classmethod
    def of(cls, plan: EvaluatorPlan) -> Budget:
        return cls(plan.max_calls, plan.max_tokens, plan.max_model_seconds, plan.max_concurrent_calls)

    def slots(self) -> contextlib.AbstractAsyncContextManager[object]:
        """To be held by every call while it is under way."""
        return asyncio.Semaphore(self.concurrent_calls.value) if self.concurrent_calls else contextlib.nullcontext()

    def spent(self, usages: Iterable[ModelUsage], under_way: int = 0) -> Spent | None:
        """Whether no further call may be made, by what was counted and by the calls that are `under_way`. Tokens and
        seconds of these are not known yet, so they may go beyond the bound."""
        usages = list(usages)
        for bound, used, reason, code, what in (
            (self.calls, _calls(usages) + under_way, RunReason.CALL_LIMIT_REACHED, "call_limit_reached", "calls"),
            (
                self.tokens,
                sum(usage.total_tokens for usage in usages),
                RunReason.TOKEN_LIMIT_REACHED,
                "token_limit_reached",
                "tokens",
            ),
            (
                self.model_seconds,
                sum(usage.seconds for usage in usages),
                RunReason.MODEL_TIME_LIMIT_REACHED,
                "model_time_limit_reached",
                "seconds in which they were called",
            ),
        ):
            if bound is not None and used >= bound.value:
                words = f"the job's models counted {used:.15g} {what}, and {bound.setting} allows {bound.value}"
                return Spent(reason, code, words)
        return None


UNBOUNDED = Budget()


def _calls(usages: Iterable[ModelUsage]) -> int:
    return sum(calls_of(usage) for usage in usages)
