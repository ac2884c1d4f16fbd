"""One evaluation from plan to outcome: the order of things."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..api.conditions import RunReason
from ..api.wire.endpoints import Stage
from ..api.wire.mounts import GYM_RUN
from ..api.wire.plans import EvaluatorPlan
from ..api.wire.reports import FailureClass, Outcome
from . import last_word
from .collect import Collector
from .collect.in_container import InContainer
from .collect.through_hosts import ThroughHosts
from .collection import Collection
from .dataset import Dataset
from .delivery import Delivery
from .endings import end_by
from .errors import JobFailed
from .gym_process import gym_environment, output_mask, runtime_config
from .http_server import HttpServer, Ports, RunningServer
from .journal import Journal
from .last_word import KeptOutcomeError
from .model_keys import ModelKeys
from .plan import Paths, Tokens
from .preparation import Preparation, changed_environment
from .progress import ProgressState
from .reporting import Reporter
from .rollout_calls import RolloutCalls
from .rollouts import Rollout
from .scoring import evaluate
from .trials import JournaledGymRunner

log = logging.getLogger(__name__)


@dataclass
class Evaluation:
    """One attempt of one job."""

    plan: EvaluatorPlan
    paths: Paths
    tokens: Tokens
    ports: Ports = field(default_factory=Ports)
    port: int | None = None
    """Where the API listens, once it does."""
    on_own_results: Callable[[], None] = lambda: None
    """Called once it is known that the results volume holds nobody else's."""
    _calls: RolloutCalls = field(default_factory=RolloutCalls)
    _report: Reporter = field(init=False)
    _delivery: Delivery = field(init=False)
    _rollouts: list[Rollout] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._report = Reporter(self.plan, self.paths, self._calls)
        self._delivery = Delivery(self.plan, self.paths, self._report)

    @property
    def progress(self) -> ProgressState:
        return self._report.progress

    async def run(self) -> Outcome:
        """Do it all. The outcome is written, whatever happens; only cancellation is passed on."""
        ended = self._ended_before()
        if ended is not None:
            last_word.say(ended, self.paths.termination_log)
            return ended
        self._report.write(self._report.running())
        try:
            outcome = await self._run()
        except asyncio.CancelledError:
            message = "the evaluator was told to end before the job was done"
            self._report.write(self._report.failed(JobFailed(RunReason.EVALUATOR_LOST, message, FailureClass.KILLED)))
            raise
        except Exception as error:
            outcome = self._failed(error)
        self._report.write(outcome)
        return outcome

    def _ended_before(self) -> Outcome | None:
        """How this very attempt ended, if its container was started again all the same: killed on its way out."""
        try:
            kept = last_word.kept(self.paths.outcome, self.plan.uid, self.plan.attempt)
        except KeptOutcomeError as error:
            log.warning("%s", error)
            return None
        return kept if kept and kept.is_final else None

    async def _run(self) -> Outcome:
        """Prepare; then collect, score and deliver on what the journal keeps."""
        prepare = Preparation(self.plan, self.paths)
        dataset = self._report.provenance.dataset = await prepare.dataset()
        self.progress.notices = dataset.notices
        self.progress.total = len(dataset.tasks) * self.plan.target.num_repeats
        keys, warnings = prepare.keys()
        self._report.warnings += warnings + prepare.ignored_agent()
        trusted = prepare.trusted()
        self._report.environment = await prepare.environment()
        await self._delivery.check()
        journal = await prepare.journal(dataset)
        self._report.may_write_results = True
        self.on_own_results()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(journal.close)
            try:
                outcome = await self._evaluate(stack, dataset, journal, keys, trusted)
            except Exception as error:
                outcome = self._failed(error)
            if not outcome.is_final:
                return outcome
            # What was opened is still open: whoever asks meanwhile is told that results are on their way.
            return await self._delivery.bring(outcome, self._rollouts, journal)

    async def _evaluate(
        self,
        stack: contextlib.AsyncExitStack,
        dataset: Dataset,
        journal: Journal,
        keys: ModelKeys,
        trusted: Mapping[str, ssl.SSLContext],
    ) -> Outcome:
        """Collect what the journal lacks, score all it has, and say how it ended."""
        self._report.warnings += await changed_environment(self._report.environment, journal)
        http = HttpServer(self.plan, self.paths, self.tokens, self.ports, self.progress, self._calls)
        server = await stack.enter_async_context(http.serve(journal, keys, trusted, self._report.environment))
        self._report.server, self.port = server, server.port
        await stack.enter_async_context(self._report.keeping_current())

        collector = self._collector(server)
        collection = Collection(self.plan, journal, self.progress, server.gateway, self._calls)

        async def collect(rollouts: list[Rollout]) -> list[dict[str, Any]] | None:
            self._rollouts = rollouts
            aggregates = await collection.run(collector, rollouts)
            runner.unrecorded = collection.unrecorded
            return aggregates

        runner = JournaledGymRunner(self.plan, journal, self._delivery.directory / GYM_RUN, collect)
        try:
            summary = await evaluate(self.plan, dataset.tasks, runner, self._delivery.directory)
            end = await collector.ended()
        finally:
            self._delivery.keep_host_logs()
        for key in runner.unreadable:
            self.progress.taken_back(journal.results.reward(key) or 0.0)
        self.progress.stage = Stage.DONE
        self._report.warnings += runner.warnings()
        return self._report.ended(
            summary, runner.failures(), stopped=collection.stopped, lacks=collection.lacks, end=end
        )

    def _collector(self, server: RunningServer) -> Collector:
        """The one decision between the two ways to collect."""
        target = self.plan.target
        if server.registry is not None:
            return ThroughHosts(server.registry, server.session, self._calls, target)
        config = runtime_config(target, self.plan.models, server.port)
        token, directory = self.tokens.local_gym, self._delivery.directory / GYM_RUN
        environment = gym_environment(config, target.env_secret_names, token)
        return InContainer(config, directory, environment, self._calls, output_mask(target, token), self.progress)

    def _failed(self, error: Exception) -> Outcome:
        return self._report.failed(end_by(error, self.paths.results, self.plan.results_location))
