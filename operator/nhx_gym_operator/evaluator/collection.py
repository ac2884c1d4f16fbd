"""Collecting what the journal lacks, and Gym's aggregates over all it has while Gym is still there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..api.conditions import RunReason
from ..api.failure_policy import FailureAction
from ..api.wire.endpoints import Stage
from ..api.wire.plans import EvaluatorPlan, RolloutRule
from ..api.wire.reports import FailureClass
from .collect import AggregatesMissing, Collector
from .errors import JobFailed
from .gateway import ModelGateway
from .journal import Journal
from .metering import sums
from .progress import ProgressState, utc
from .rollout_calls import RolloutCalls
from .rollouts import Failure, Rollout, judge, stamped_result
from .trials import NOT_COLLECTED
from .untrusted import gym_aggregates
from .verdict import MAX_OUTCOME_MESSAGE

QUIET_S = 30.0
"""Of so long a silence the status speaks. Ours: half of the minute in which a job that is stuck has to say so."""
LAST_CALL_S = 60.0
"""Beyond a model's own deadline: by then its call is counted, answered or not."""
_OF_ANY_CAUSE = frozenset({FailureClass.ENVIRONMENT, FailureClass.LEGITIMATE})
"""What a model call that failed for good explains better: code that was left without an answer."""
_SHOWN = 500
"""Characters of the failure that ended a job by a rule."""
_TOO_DEEP = Failure(FailureClass.ENVIRONMENT, "the result is nested too deeply")

log = logging.getLogger(__name__)


class _EndedByRule(Exception):
    """A rule of the job ends it at a failure that was recorded; says which."""


@dataclass
class Collection:
    """One attempt's collection. Afterwards `stopped` says why it ended early, if it did: what was collected is still
    scored; `lacks` says what the result will be without."""

    plan: EvaluatorPlan
    journal: Journal
    progress: ProgressState
    gateway: ModelGateway
    calls: RolloutCalls
    stopped: JobFailed | None = None
    lacks: list[str] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    _signs: int = 0
    """How many rollouts have ended otherwise than by a deadline."""
    _began: float = 0.0
    _seen: tuple[int, int] = (-1, 0)
    _sign_at: float = 0.0
    """When something of `_counted_signs` was last seen to have changed; this one and `_began` in Unix time."""

    async def run(self, collector: Collector, rollouts: list[Rollout]) -> list[dict[str, Any]] | None:
        """Collect; returns Gym's aggregates, if there are any. Raises `JobFailed` if there is nothing to score."""
        self.rollouts = rollouts
        self._count_recorded()
        missing = self._missing()
        log.info("%d of %d rollouts are to be collected", len(missing), len(rollouts))
        try:
            async with collector:
                if missing or self._to_run_again():
                    self.progress.stage = Stage.COLLECTING
                await self._collect(collector, missing)
                self.progress.stage = Stage.SCORING
                return await self._aggregates(collector)
        except JobFailed as failure:
            if failure.reason == RunReason.EVALUATOR_LOST:
                # The attempt's end, not the job's: the next one goes on from the journal, if anything was collected.
                raise
            self.progress.stage = Stage.SCORING
            # Gym is gone. What there is of results is worth scoring; without any, this is the end.
            if not self.journal.results:
                raise
            self.stopped = failure
            self.lacks.append(f"runner.gym.* is missing: {failure.message[:MAX_OUTCOME_MESSAGE]}")
            return None

    @property
    def unrecorded(self) -> Failure:
        """The failure of rollouts that the journal says nothing about."""
        if self.stopped is None:
            return NOT_COLLECTED
        return Failure(self.stopped.failure_class or FailureClass.KILLED, f"not collected: {self.stopped.message}")

    def _count_recorded(self) -> None:
        for rollout in self.rollouts:
            reward = self.journal.results.reward(rollout.key)
            if reward is not None:
                self.progress.recorded(reward)
            elif rollout.key in self.journal.failures:
                self.progress.failed_one()

    def _missing(self) -> list[Rollout]:
        """What has not ended yet in any attempt."""
        results, failures = self.journal.results, self.journal.failures
        return [each for each in self.rollouts if each.key not in results and each.key not in failures]

    def _to_run_again(self) -> list[Rollout]:
        """What has failed, and not as often as it may."""
        tries, failures = self.journal.failed_tries, self.journal.failures
        return [
            each
            for each in self.rollouts
            if 0 < tries[each.key] <= self.plan.retry_failed and self._may_run_again(failures[each.key])
        ]

    def _may_run_again(self, failure: Failure) -> bool:
        rule = self._rule_about(failure)
        is_over = failure.is_final or failure.failure_class is FailureClass.BUDGET
        return not is_over and not (rule and rule.action is FailureAction.FAIL_ROLLOUT)

    def _rule_about(self, failure: Failure) -> RolloutRule | None:
        rules = self.plan.rollout_rules
        return next((rule for rule in rules if failure.failure_class in rule.classes), None)

    def _end_by_rule(self, rollout: Rollout, failure: Failure) -> None:
        """Raises `_EndedByRule` if this failure is to end the job."""
        rule = self._rule_about(failure)
        if rule and rule.action is FailureAction.FAIL_JOB:
            raise _EndedByRule(
                f"{rule.place} ends the job at the first failure of class {failure.failure_class.value}: task "
                f"{rollout.task_id}, repeat {rollout.key.rollout}: {failure.message[:_SHOWN]}"
            )

    async def _collect(self, collector: Collector, missing: list[Rollout]) -> None:
        limit, idle = self.plan.target.collection_timeout_s, self._idle_limit()
        started = time.monotonic()
        self._began = self._sign_at = time.time()
        self.progress.quiet = self._quiet
        try:
            async with asyncio.timeout(limit) as whole, self._watched(idle) as watched:
                await self._rounds(collector, missing)
        except _EndedByRule as ended:
            self.stopped = JobFailed(RunReason.FAILURE_POLICY, str(ended))
        except TimeoutError:
            if whole.expired():
                message = f"collection did not end within {limit:g} s (spec.target.gym.collectionTimeoutSeconds)"
                self.stopped = JobFailed(RunReason.COLLECTION_TIMEOUT, message, FailureClass.TIMEOUT)
            elif watched.expired():
                message = (
                    f"for {idle:g} s no rollout ended, unless by a deadline, and no model answered "
                    "(spec.idleTimeoutSeconds, or the longest of spec.models[].timeoutSeconds)"
                )
                self.stopped = JobFailed(RunReason.COLLECTION_STALLED, message, FailureClass.TIMEOUT)
            else:
                raise
        finally:
            self.progress.quiet, self.progress.again = str, ""
            await self.journal.settle()
        spent = self.gateway.spent()
        if spent and self.stopped is None and any(self._was_cut_off(rollout) for rollout in self.rollouts):
            self.stopped = JobFailed(spent.reason, spent.words, FailureClass.BUDGET)
        seconds = time.monotonic() - started
        log.info("%d rollouts in %.1f s, %.1f a second", len(missing), seconds, len(missing) / seconds)

    async def _rounds(self, collector: Collector, missing: list[Rollout]) -> None:
        """First what has not ended yet, then what failed: by then a passing trouble has had time to pass."""
        for rollout in self.rollouts:
            if failure := self.journal.failures.get(rollout.key):
                # The evaluator was lost before it could say so.
                self._end_by_rule(rollout, failure)
        if missing:
            await collector.collect(missing, self._record, self._is_spent)
        while not self._is_spent() and (failed := self._to_run_again()):
            self.progress.again = f"{len(failed)} failed rollouts are run again (spec.retryFailed)"
            await collector.collect(failed, self._record, self._is_spent)

    def _is_spent(self) -> bool:
        return self.gateway.spent() is not None

    async def _record(self, rollout: Rollout, answer: Mapping[str, Any] | Failure) -> None:
        """Judge one answer and write it down. Nothing that an answer holds ends the collection of others."""
        judged, result = self._judged(rollout, answer)
        had_failed = rollout.key in self.journal.failures
        if isinstance(judged, Failure):
            log.warning("rollout %s failed (%s): %s", tuple(rollout.key), judged.failure_class, judged.message)
            self._signs += judged.failure_class is not FailureClass.TIMEOUT
            if await self.journal.add_failure(rollout.key, rollout.task_id, judged):
                if not had_failed:
                    self.progress.failed_one()
                self._end_by_rule(rollout, judged)
            return
        self._signs += 1
        if await self.journal.add_result(rollout.key, rollout.task_id, result, judged):
            (self.progress.made_good if had_failed else self.progress.recorded)(judged)

    def _judged(self, rollout: Rollout, answer: Mapping[str, Any] | Failure) -> tuple[float | Failure, dict[str, Any]]:
        """The reward of what came, with the result as it is kept, or why it has none. What an environment made of a
        model call without an answer is never a reward."""
        judged = answer if isinstance(answer, Failure) else self._judge(answer)
        spoiled, used = self.calls.rollout_ended(rollout.key, answer, rewarded=not isinstance(judged, Failure))
        if spoiled and (not isinstance(judged, Failure) or judged.failure_class in _OF_ANY_CAUSE):
            judged = spoiled.failure
        earlier = self.journal.failures.get(rollout.key)
        usage = {name: model.model_dump(exclude_defaults=True) for name, model in used.items()}
        usage = sums(earlier.model_usage, usage) if earlier else usage
        if not isinstance(judged, Failure) and not isinstance(answer, Failure):
            try:
                return judged, stamped_result(rollout, answer, usage)
            except RecursionError:
                judged = _TOO_DEEP
        return replace(judged, model_usage=usage) if isinstance(judged, Failure) else judged, {}

    def _judge(self, answer: Mapping[str, Any]) -> float | Failure:
        try:
            return judge(answer, self.plan.target.reward_key)
        except RecursionError:
            return _TOO_DEEP

    def _idle_limit(self) -> float | None:
        """Seconds without any sign of life after which collection ends; never less than a model may take for one."""
        if self.plan.idle_s is None:
            return None
        return max(self.plan.idle_s, *(route.timeout_seconds + LAST_CALL_S for route in self.plan.models))

    @contextlib.asynccontextmanager
    async def _watched(self, limit: float | None) -> AsyncIterator[asyncio.Timeout]:
        """A block that ends with `TimeoutError` once nothing has happened for `limit` seconds. Calls count when a model
        answered: what an environment merely asks for proves nothing."""
        loop = asyncio.get_running_loop()

        async def watch(limit: float) -> None:
            seen = None
            while True:
                signs = self._counted_signs()
                if signs != seen:
                    timer.reschedule(loop.time() + limit)
                    seen = signs
                await asyncio.sleep(min(1.0, limit / 4))

        async with asyncio.timeout(limit) as timer:
            watching = asyncio.create_task(watch(limit)) if limit is not None else None
            try:
                yield timer
            finally:
                if watching is not None:
                    watching.cancel()

    def _counted_signs(self) -> tuple[int, int]:
        return self._signs, sum(model.calls for model in self.gateway.usage().values())

    def _quiet(self) -> str:
        """What does not come, since when, and when collection ends over it."""
        signs, now = self._counted_signs(), time.time()
        if signs != self._seen:
            self._seen, self._sign_at = signs, now
        words = self.gateway.silence(QUIET_S)
        if not words and now - self._sign_at < QUIET_S:
            return ""
        words = words or f"since {utc(self._sign_at)} no rollout has ended and no model has answered"
        bounds = []
        if self.plan.target.collection_timeout_s is not None:
            ends = self._began + self.plan.target.collection_timeout_s
            bounds.append((ends, "spec.target.gym.collectionTimeoutSeconds"))
        if idle := self._idle_limit():
            bounds.append((self._sign_at + idle, "spec.idleTimeoutSeconds"))
        if bounds:
            ends, bound = min(bounds)
            words += f"; if nothing comes, collection ends at {utc(ends)} ({bound})"
        return words

    def _was_cut_off(self, rollout: Rollout) -> bool:
        """Whether a rollout was not run, or not to its end, since the job had spent what it may."""
        failure = self.journal.failures.get(rollout.key)
        if failure is None:
            return rollout.key not in self.journal.results
        return failure.failure_class is FailureClass.BUDGET

    async def _aggregates(self, collector: Collector) -> list[dict[str, Any]] | None:
        recorded = [rollout for rollout in self.rollouts if rollout.key in self.journal.results]
        if not recorded:
            return None
        try:
            aggregates, left_out = gym_aggregates(await collector.aggregate(recorded, self.journal.results))
        except (AggregatesMissing, ValueError) as error:
            self.lacks.append(f"runner.gym.* is missing: {error}")
            return None
        self.lacks += [f"runner.gym.* lacks {words}" for words in left_out]
        return aggregates
