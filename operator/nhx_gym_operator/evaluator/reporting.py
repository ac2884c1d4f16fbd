"""What the evaluator says of itself while it runs and when it ends: its outcome, and the bundle's provenance."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from nhx_evals_sdk.agent_eval.results import AgentEvalSummary

from ..api.conditions import RunReason
from ..api.outcome import trimmed
from ..api.wire.endpoints import EgressUse, Notice
from ..api.wire.plans import EvaluatorPlan
from ..api.wire.reports import Outcome
from ..in_pods.mounted import trimmed_variables
from . import last_word
from .call_facts import other_names
from .errors import JobFailed
from .gateway import ModelGateway
from .gym_logs import GymEnd, with_log
from .hosts import HostRegistry
from .http_server import RunningServer
from .packing import PackedEnvironment
from .plan import Paths
from .progress import ProgressState
from .provenance import Provenance
from .rollout_calls import RolloutCalls
from .rollouts import Failure
from .untrusted import readable
from .verdict import MAX_OUTCOME_MESSAGE, Verdict, aggregates_of, base_outcome, verdict
from .versions import deciding_versions

REPORT_INTERVAL_S = 2.0
"""How stale the termination message of a killed evaluator may be."""
_BESIDE_A_LOG = 500
"""Characters of a message that leave room for a log's last lines."""
_WITH_THE_LOG = frozenset({RunReason.COLLECTION_TIMEOUT, RunReason.COLLECTION_STALLED})
"""Ends of collection that Gym's log explains."""
_FAILS_ANYWAY = _WITH_THE_LOG | {RunReason.FAILURE_POLICY}
"""Ends of collection that fail the job whatever was collected."""

log = logging.getLogger(__name__)
JobState = Literal["Running", "Complete", "Failed"]


@dataclass
class Reporter:
    """Knows all that an outcome is made of, as far as there is any of it yet."""

    plan: EvaluatorPlan
    paths: Paths
    calls: RolloutCalls
    progress: ProgressState = field(init=False)
    provenance: Provenance = field(init=False)
    warnings: list[str] = field(default_factory=list)
    environment: PackedEnvironment | None = None
    server: RunningServer | None = None
    """Once it listens."""
    may_write_results: bool = False
    """Whether the results volume is known to hold nobody else's."""

    def __post_init__(self) -> None:
        self.progress = ProgressState(self.plan.attempt, also=self._notices, egress=self._egress)
        self.provenance = Provenance(self.plan, self.paths, self.progress.images)

    @property
    def gateway(self) -> ModelGateway | None:
        return self.server.gateway if self.server else None

    @property
    def registry(self) -> HostRegistry | None:
        return self.server.registry if self.server else None

    def _notices(self) -> list[Notice]:
        """What the models and the calls to them have shown so far."""
        if self.gateway is None:
            return self.calls.notices()
        asked = {route.name: route.model for route in self.plan.models}
        return [*self.calls.notices(), *self.gateway.notices(), *other_names(asked, self.gateway.facts())]

    def _egress(self) -> EgressUse | None:
        return self.server.egress.use() if self.server and self.server.egress else None

    def running(self) -> Outcome:
        return self._outcome("Running")

    def failed(self, failure: JobFailed) -> Outcome:
        """The outcome of a job that ended without a verdict on its rollouts."""
        outcome = self._outcome("Failed", failure.reason, failure.message)
        outcome.failure_class = failure.failure_class
        if self.progress.total:
            outcome.coverage = self.progress.done / self.progress.total
        return outcome

    def ended(
        self,
        summary: AgentEvalSummary,
        failures: list[Failure],
        *,
        stopped: JobFailed | None,
        lacks: list[str],
        end: GymEnd,
    ) -> Outcome:
        """The outcome of a job that was scored. `stopped` is why collection ended early, `end` how Gym did."""
        if end.killed:
            grace = f"{self.plan.target.shutdown_grace_s:g} s (spec.target.gym.shutdownGraceSeconds)"
            message = f"{end.killed} processes of Gym did not end within {grace} and were killed"
            self.warnings.append(with_log(message, end.file, end.lines))
        if self.registry is not None and stopped is None:
            self.warnings += self.registry.missed
        total = self.progress.total
        done = total - len(failures)
        judged = verdict(self.plan, done=done, total=total, failures=failures)
        outcome = self._outcome(judged.state, judged.reason, judged.message)
        outcome.failure_class = judged.failure_class
        outcome.coverage = judged.coverage
        outcome.aggregates, outcome.aggregates_dropped = aggregates_of(summary)
        outcome.degraded = [readable(words) for words in judged.degraded + lacks]
        if stopped is not None and (judged.state == "Failed" or stopped.reason in _FAILS_ANYWAY):
            _explain(outcome, stopped, judged, end)
        elif not done and self.gateway is not None:
            for name, words in self.gateway.dead_models().items():
                outcome.reason = RunReason.MODEL_UNAVAILABLE
                outcome.message = f"model {name} answered no call: {words}"[:MAX_OUTCOME_MESSAGE]
        return outcome

    def write(self, outcome: Outcome) -> None:
        last_word.say(outcome, self.paths.termination_log)
        if self.may_write_results:
            last_word.keep(outcome, self.plan, self.paths.outcome)

    def document(self) -> dict[str, Any]:
        """The provenance, as far as it is known."""
        return self.provenance.document(
            versions=self.registry.versions if self.registry else {},
            kernel=self.registry.kernel if self.registry else "",
            environment_digest=self.environment.digest if self.environment else None,
            facts=self.gateway.facts() if self.gateway else {},
            usage=self.gateway.usage() if self.gateway else {},
            egress=self.server.egress.counts() if self.server and self.server.egress else None,
        )

    def write_provenance(self) -> None:
        """Trouble is logged, not raised: it must not cost a result."""
        if not self.may_write_results:
            return
        try:
            self.provenance.write(self.document())
        except Exception:
            log.exception("provenance.json could not be written")

    @contextlib.asynccontextmanager
    async def keeping_current(self) -> AsyncIterator[None]:
        """Keep termination message and provenance no staler than `REPORT_INTERVAL_S`."""

        async def report() -> None:
            written = None
            while True:
                await asyncio.sleep(REPORT_INTERVAL_S)
                current = self.running()
                if current != written:
                    # Not in a thread, which could outlive this task and overwrite the final outcome.
                    self.write(current)
                    written = current
                    self.write_provenance()

        task = asyncio.create_task(report())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _outcome(self, state: JobState, reason: str = "", message: str = "") -> Outcome:
        usage = self.gateway.usage() if self.gateway else {}
        # What this process knows itself, no host may say otherwise.
        versions = (self.registry.versions if self.registry else {}) | deciding_versions()
        outcome = base_outcome(self.plan, self.progress.snapshot(), usage, versions)
        outcome.state, outcome.reason, outcome.message = state, reason, readable(message[:MAX_OUTCOME_MESSAGE])
        warnings = [*self.warnings, *self._trimmed_warnings(), *self._unmetered_warnings()]
        outcome.warnings = [readable(words) for words in warnings]
        outcome.host_kernel = self.registry.kernel if self.registry else ""
        outcome.environment_digest = self.environment.digest if self.environment else None
        return outcome

    def _trimmed_warnings(self) -> list[str]:
        """By the names that the job itself has: a host may say any."""
        names = self.plan.target.env_secret_names
        found = self.registry.trimmed if self.registry else trimmed_variables(os.environ, names)
        return [trimmed(f"the value of spec.target.gym.envSecrets.{name}") for name in names if name in found]

    def _unmetered_warnings(self) -> list[str]:
        bound, calls = self.plan.max_tokens, self.gateway.unmetered_calls() if self.gateway else 0
        if bound is None or not calls:
            return []
        return [f"{calls} model calls stated no tokens, so {bound.setting} ({bound.value}) does not count them"]


def _explain(outcome: Outcome, stopped: JobFailed, judged: Verdict, end: GymEnd) -> None:
    """Why collection ended early says more than a count."""
    outcome.state, outcome.reason = "Failed", stopped.reason
    message = f"{stopped.message}; {judged.message}"[:MAX_OUTCOME_MESSAGE]
    if stopped.reason in _WITH_THE_LOG:
        message = with_log(message[:_BESIDE_A_LOG], end.file, end.lines)
    outcome.message = readable(message)
    outcome.failure_class = stopped.failure_class or judged.failure_class
