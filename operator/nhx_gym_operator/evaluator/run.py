"""One evaluation from plan to outcome: the order of things, and every way it can end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import aiohttp
from nhx_evals_sdk.agent_eval.results import AgentEvalSummary
from nhx_evals_sdk.agent_eval.runtimes.gym.results import ensure_fresh_output

from nhx_gym_operator.api import wire
from nhx_gym_operator.api.conditions import RunReason
from nhx_gym_operator.api.constants import CLAIM_LOCATION
from nhx_gym_operator.api.wire import EvaluatorPlan, FailureClass, Outcome, Placement, Stage

from .bucket import BucketError
from .budget import Budget, Spent
from .collect import AggregatesMissing, Collector
from .collect.in_container import InContainer
from .collect.through_hosts import ThroughHosts
from .dataset import Dataset, DatasetError, Subset, load_dataset, load_taskset, missing_bundled, unusable_mounted
from .errors import JobFailed
from .gateway import ModelGateway, field_of
from .gym_logs import GymEnd, explained
from .gym_process import hidden_values, runtime_config
from .hosts import HostRegistry
from .journal import ForeignJournal, Journal, JournalError, JournalHeader
from .model_keys import ModelKeyError, ModelKeys
from .outcome import MAX_MESSAGE, Verdict, aggregates_of, base_outcome, own_versions, verdict, write_outcome
from .plan import Paths, Tokens
from .progress import ProgressState
from .provenance import PROVENANCE, Provenance, encoded
from .report import write_report
from .rollout_calls import RolloutCalls
from .rollouts import Failure, Rollout, judge, stamped_result, well_formed
from .scoring import JournaledGymRunner, evaluate
from .server import Services, StagedEnvironment, make_app, serving
from .sources.errors import StagingError
from .stage import pack
from .trust import NoCertificates, trust
from .upload import Upload

REPORT_INTERVAL_S = 2.0
"""How stale the termination message of a killed evaluator may be."""
SENT_AGAIN = frozenset({FailureClass.KILLED, FailureClass.TRANSIENT})
"""Failures that a later attempt of the job tries once more. The others would end the same way."""
_TOO_DEEP = Failure(FailureClass.ENVIRONMENT, "the result is nested too deeply")
_BESIDE_A_LOG = 500
"""Characters of a message that leave room for a log's last lines."""

log = logging.getLogger(__name__)
JobState = Literal["Running", "Complete", "Failed"]


@dataclass(frozen=True)
class Ports:
    """Where the API and its canary listen; `host` None is every address. `hosts` is where gym hosts do."""

    host: str | None = None
    api: int = wire.EVALUATOR_PORT
    canary: int = wire.CANARY_PORT
    hosts: int | None = wire.HOST_PORT


@dataclass
class Evaluation:
    """One attempt of one job."""

    plan: EvaluatorPlan
    paths: Paths
    tokens: Tokens
    ports: Ports = field(default_factory=Ports)
    progress: ProgressState = field(init=False)
    provenance: Provenance = field(init=False)
    warnings: list[str] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    environment: StagedEnvironment | None = None
    port: int | None = None
    """Where the API listens, once it does."""
    on_own_results: Callable[[], None] = lambda: None
    """Called once it is known that the results volume holds nobody else's."""
    _gateway: ModelGateway | None = None
    _registry: HostRegistry | None = None
    _calls: RolloutCalls = field(default_factory=RolloutCalls)
    _results_are_ours: bool = False
    _journal: Journal | None = None
    _rollouts: list[Rollout] = field(default_factory=list)
    _upload: Upload | None = None
    """Set once the bucket has shown that it takes files."""
    _stopped: JobFailed | None = None
    """Why collection ended early, if it did: what was collected is still scored."""
    _end: GymEnd | None = None

    def __post_init__(self) -> None:
        self.progress = ProgressState(self.plan.attempt, also=self._calls.notices)
        self.provenance = Provenance(self.plan, self.paths, self.progress.images)

    async def run(self) -> Outcome:
        """Do it all. The outcome is written, whatever happens; only cancellation is passed on."""
        outcome = self._outcome("Failed", RunReason.EVALUATION_FAILED, "")
        self._write(self._outcome("Running"))
        try:
            outcome = await self._brought(await self._end_of_run())
        except asyncio.CancelledError:
            message = "the evaluator was told to end before the job was done"
            outcome = self._failed(JobFailed(RunReason.EVALUATOR_LOST, message, FailureClass.KILLED))
            raise
        except Exception as error:
            log.exception("the evaluation ended with an error of its own")
            message = f"{type(error).__name__}: {error}"
            outcome = self._failed(JobFailed(RunReason.EVALUATION_FAILED, message))
        finally:
            self._write(outcome)
        return outcome

    async def _end_of_run(self) -> Outcome:
        """The outcome, also of a job that failed in a way that has a name."""
        try:
            return await self._run()
        except JobFailed as failure:
            return self._failed(failure)
        except (DatasetError, ModelKeyError, NoCertificates, StagingError, JournalError, BucketError) as error:
            return self._failed(JobFailed(_reason_of(error), str(error)))

    async def _brought(self, outcome: Outcome) -> Outcome:
        """The bundle brought to the job's bucket, that of a failed job too, and what became of that in the outcome."""
        if not self._results_are_ours:
            return outcome
        self._write_provenance()
        await asyncio.to_thread(self._write_report, outcome)
        if self._upload is None:
            return outcome
        directory = self.paths.attempt(self.plan.attempt)
        self._copy_log(directory / "logs")
        try:
            await self._upload.send(directory)
        except BucketError as error:
            return self._not_brought(outcome, error)
        return outcome.model_copy(update={"results_location": self._upload.location, "results_path": self._upload.path})

    def _copy_log(self, directory: Path) -> None:
        """As it is now: what is uploaded must not grow meanwhile."""
        if self.paths.log.is_file():
            self._copy(self.paths.log, directory)

    def _copy(self, file: Path, directory: Path) -> None:
        """A log into the bundle. That there is no room for it must not cost the result."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, directory / file.name)
        except OSError as error:
            log.error("cannot copy %s to %s: %s", file, directory, error)
            self.warnings.append(f"{file.name} is not in the bundle: {error.strerror}")

    def _not_brought(self, outcome: Outcome, error: BucketError) -> Outcome:
        """Complete without the bundle in its place if a claim has it: then nothing is lost."""
        log.error("the bundle could not be uploaded: %s", error)
        words = f"the bundle could not be uploaded: {error}"[:MAX_MESSAGE]
        update: dict[str, Any] = {"upload_failed": True}
        if outcome.state == "Failed":
            update["message"] = f"{outcome.message}; {words}"[:MAX_MESSAGE]
        elif self.plan.results_location.startswith(CLAIM_LOCATION):
            update["degraded"] = [f"{words}; it is on {self.plan.results_location}", *outcome.degraded]
        else:
            update |= {"state": "Failed", "reason": RunReason.UPLOAD_FAILED, "message": words}
        return outcome.model_copy(update=update)

    async def _run(self) -> Outcome:
        dataset = self.provenance.dataset = await asyncio.to_thread(self._load_dataset)
        self.progress.notices = dataset.notices
        self.progress.total = len(dataset.tasks) * self.plan.target.num_repeats
        self._check_rollouts(len(dataset.tasks))
        keys = self._checked_keys()
        if self.plan.environment:
            archive = self.paths.work / "environment.tar"
            self.environment = await asyncio.to_thread(pack, self.paths.environment, archive)
        if self.plan.upload:
            upload = Upload(self.plan.upload, self.plan.attempt, self.paths.object_store)
            await upload.check(PROVENANCE, encoded(self._provenance()))
            self.warnings += upload.warnings
            self._upload = upload
        self._require_fresh_results()
        header = JournalHeader(self.plan.uid, dataset.digest, self.plan.target.num_repeats)
        journal = await asyncio.to_thread(Journal.open, self.paths.journal, header)
        self._results_are_ours = True
        self.on_own_results()
        self._journal = journal
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(journal.close)
            await self._note_environment(journal)
            session = await stack.enter_async_context(_client())
            local = await stack.enter_async_context(_client(trust_env=False))
            self._gateway = ModelGateway(
                self.plan.models,
                keys,
                session,
                self._calls,
                budget=Budget.of(self.plan),
                trusted=self._trusted(),
                counted=journal.usage,
            )
            distrusted = await self._gateway.check_trust()
            if distrusted:
                raise JobFailed(RunReason.MODEL_UNAVAILABLE, distrusted, FailureClass.MODEL)
            journal.measure = self._gateway.usage
            if self.plan.placement is Placement.SANDBOXED:
                timeout = self.plan.target.startup_timeout_s
                logs = self.paths.work / "host-logs"
                logs.mkdir(parents=True, exist_ok=True)
                stack.callback(self._keep_host_logs, logs)
                self._registry = HostRegistry(
                    dict(self.tokens.hosts), timeout, local, self.progress, logs, port=self.ports.hosts
                )
            services = Services(self.tokens, self._gateway, self.progress, self._registry, self.environment)
            serve = serving(
                make_app(services), host=self.ports.host, port=self.ports.api, canary_port=self.ports.canary
            )
            self.port = await stack.enter_async_context(serve)
            await stack.enter_async_context(self._reporting())
            return await self._evaluate(dataset, journal, local, self.port)

    async def _note_environment(self, journal: Journal) -> None:
        """A FileSet may have changed between two attempts, whose rollouts stand side by side in one result."""
        if self.environment is None:
            return
        others = await journal.add_environment(self.environment.digest)
        if others and journal.results:
            self.warnings.append(
                f"the environment's content changed between attempts: this one staged {self.environment.digest}, "
                f"rollouts of earlier ones ran in {', '.join(others)}; set the FileSet's spec.digest to have it refused"
            )

    def _load_dataset(self) -> Dataset:
        file = self.paths.dataset_file(self.plan.dataset_file)
        label = self.plan.dataset_label
        unusable = missing_bundled(file, self.paths.bundled_datasets) or unusable_mounted(
            file, self.paths.dataset, label
        )
        if unusable is not None:
            raise unusable
        subset = Subset(self.plan.limit, self.plan.task_ids)
        if self.plan.taskset:
            return load_taskset(file, label, subset)
        return load_dataset(file, label, subset, copy=self.paths.work / "rows" / file.name)

    def _check_rollouts(self, tasks: int) -> None:
        bound, repeats = self.plan.max_rollouts, self.plan.target.num_repeats
        if bound is not None and tasks * repeats > bound.value:
            raise JobFailed(
                RunReason.ROLLOUT_LIMIT_EXCEEDED,
                f"{tasks} tasks x numRepeats {repeats} are {tasks * repeats} rollouts, and {bound.setting} allows "
                f"{bound.value}; lower spec.tasks.limit or spec.target.gym.numRepeats",
                FailureClass.BUDGET,
            )

    def _require_fresh_results(self) -> None:
        """Refuses a volume that holds somebody else's rollouts, as the SDK's runner refuses such a directory. What our
        own journal speaks of is this job's, of an earlier try."""
        if self.paths.journal.exists():
            return
        try:
            ensure_fresh_output(self.paths.attempt(self.plan.attempt) / "gym_run" / "rollouts.jsonl")
        except FileExistsError as error:
            raise JobFailed(
                RunReason.RESULTS_NOT_FRESH, f"{self.plan.results_location} is not this job's alone: {error}"
            ) from error

    def _checked_keys(self) -> ModelKeys:
        keys = ModelKeys(self.paths.model_keys)
        for route in self.plan.models:
            keys.read(route)
            if keys.was_trimmed(route):
                self.warnings.append(f"white space around the API key of model {route.name!r} was left out")
        return keys

    def _trusted(self) -> dict[str, ssl.SSLContext]:
        return {
            route.name: trust(self.paths.model_certificates / route.name / "value", field_of(route))
            for route in self.plan.models
            if route.has_certificates
        }

    async def _evaluate(self, dataset: Dataset, journal: Journal, local: aiohttp.ClientSession, port: int) -> Outcome:
        work_dir = self.paths.attempt(self.plan.attempt)
        collector = self._collector(work_dir, local, port)

        async def collect(rollouts: list[Rollout]) -> list[dict[str, Any]] | None:
            return await self._collect(collector, rollouts, journal, runner)

        runner = JournaledGymRunner(self.plan, journal, work_dir / "gym_run", collect)
        summary = await evaluate(self.plan, dataset.tasks, runner, work_dir)
        self._note_end(await collector.ended())
        self.progress.stage = Stage.DONE
        if self._upload is not None:
            self.progress.message = f"the bundle is brought to {self._upload.location}"
        failures = list(journal.failures.values())
        failures += [runner.unrecorded] * (self.progress.total - len(journal.results) - len(failures))
        return self._ended(summary, len(journal.results), failures)

    def _note_end(self, end: GymEnd) -> None:
        self._end = end
        if end.killed:
            grace = f"{self.plan.target.shutdown_grace_s:g} s (spec.target.gym.shutdownGraceSeconds)"
            message = f"{end.killed} processes of Gym did not end within {grace} and were killed"
            self.warnings.append(well_formed(explained(message, end.file, end.lines)))

    def _keep_host_logs(self, logs: Path) -> None:
        """What hosts sent of their output, put beside Gym's other files once nothing makes that directory anew."""
        directory = self.paths.attempt(self.plan.attempt) / "gym_run"
        for file in logs.iterdir():
            self._copy(file, directory)

    def _collector(self, work_dir: Path, local: aiohttp.ClientSession, port: int) -> Collector:
        """The one decision between the two ways to collect."""
        target = self.plan.target
        if self._registry is not None:
            return ThroughHosts(self._registry, local, self._calls, target)
        config = runtime_config(target, self.plan.models, port)
        token = self.tokens.local_gym
        return InContainer(config, work_dir / "gym_run", token, self._calls, hidden_values(target, token))

    async def _collect(
        self, collector: Collector, rollouts: list[Rollout], journal: Journal, runner: JournaledGymRunner
    ) -> list[dict[str, Any]] | None:
        """Collect what the journal lacks, and aggregate what it has while Gym is still there."""
        self._rollouts = rollouts
        missing = self._missing(rollouts, journal)
        log.info("%d of %d rollouts are to be collected", len(missing), len(rollouts))
        try:
            async with collector:
                if missing:
                    self.progress.stage = Stage.COLLECTING
                    await self._collect_missing(collector, missing, journal)
                self.progress.stage = Stage.SCORING
                return await self._aggregates(collector, rollouts, journal)
        except JobFailed as failure:
            # Gym is gone. What there is of results is worth scoring; without any, this is the end.
            if not journal.results:
                raise
            self._stopped = failure
            self.degraded.append(f"runner.gym.* is missing: {failure.message[:MAX_MESSAGE]}")
            return None
        finally:
            self.progress.stage = Stage.SCORING
            if self._stopped is not None:
                kind = self._stopped.failure_class or FailureClass.KILLED
                runner.unrecorded = Failure(kind, f"not collected: {self._stopped.message}")

    def _missing(self, rollouts: list[Rollout], journal: Journal) -> list[Rollout]:
        """What is to be collected; counts what needs not be."""
        missing = []
        for rollout in rollouts:
            reward, failure = journal.results.reward(rollout.key), journal.failures.get(rollout.key)
            if reward is not None:
                self.progress.recorded(reward)
            elif failure is not None and failure.failure_class not in SENT_AGAIN:
                self.progress.failed_one()
            else:
                missing.append(rollout)
        return missing

    async def _collect_missing(self, collector: Collector, missing: list[Rollout], journal: Journal) -> None:
        async def record(rollout: Rollout, answer: Mapping[str, Any] | Failure) -> None:
            judged, result = self._judged(rollout, answer)
            if isinstance(judged, Failure):
                await record_failure(rollout, judged)
            elif await journal.add_result(rollout.key, rollout.task_id, result, judged):
                self.progress.recorded(judged)

        async def record_failure(rollout: Rollout, failure: Failure) -> None:
            log.warning("rollout %s failed (%s): %s", tuple(rollout.key), failure.failure_class, failure.message)
            if await journal.add_failure(rollout.key, rollout.task_id, failure):
                self.progress.failed_one()

        limit = self.plan.target.collection_timeout_s
        started = time.monotonic()
        try:
            async with asyncio.timeout(limit) as timer:
                await collector.collect(missing, record, lambda: self._spent() is not None)
        except TimeoutError:
            if not timer.expired():
                raise
            message = f"collection did not end within {limit:g} s (spec.target.gym.collectionTimeoutSeconds)"
            self._stopped = JobFailed(RunReason.COLLECTION_TIMEOUT, message, FailureClass.TIMEOUT)
        finally:
            await journal.settle()
        spent = self._spent()
        if spent and self._stopped is None and any(_cut_off(rollout, journal) for rollout in missing):
            self._stopped = JobFailed(spent.reason, spent.words, FailureClass.BUDGET)
        seconds = time.monotonic() - started
        log.info("%d rollouts in %.1f s, %.1f a second", len(missing), seconds, len(missing) / seconds)

    def _judged(self, rollout: Rollout, answer: Mapping[str, Any] | Failure) -> tuple[float | Failure, dict[str, Any]]:
        """The reward of what came, with the result as it is kept, or why it has none. What an environment made of a
        model call without an answer is never a reward."""
        judged = answer if isinstance(answer, Failure) else self._judge(answer)
        spoiled, used = self._calls.rollout_ended(rollout.key, answer, rewarded=not isinstance(judged, Failure))
        if spoiled and (not isinstance(judged, Failure) or judged.failure_class is FailureClass.ENVIRONMENT):
            judged = spoiled.failure
        usage = {name: model.model_dump(exclude_defaults=True) for name, model in used.items()}
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

    async def _aggregates(
        self, collector: Collector, rollouts: list[Rollout], journal: Journal
    ) -> list[dict[str, Any]] | None:
        recorded = [rollout for rollout in rollouts if rollout.key in journal.results]
        if not recorded:
            return None
        try:
            return await collector.aggregate(recorded, journal.results)
        except AggregatesMissing as error:
            self.degraded.append(well_formed(f"runner.gym.* is missing: {error}"))
            return None

    @contextlib.asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        """Keep the termination message no staler than `REPORT_INTERVAL_S`."""

        async def report() -> None:
            written = None
            while True:
                await asyncio.sleep(REPORT_INTERVAL_S)
                current = self._outcome("Running")
                if current != written:
                    # Not in a thread, which could outlive this task and overwrite the final outcome.
                    self._write(current)
                    written = current
                    self._write_provenance()

        task = asyncio.create_task(report())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _spent(self) -> Spent | None:
        return self._gateway.spent() if self._gateway else None

    def _ended(self, summary: AgentEvalSummary, done: int, failures: list[Failure]) -> Outcome:
        judged = verdict(self.plan, done=done, total=self.progress.total, failures=failures)
        aggregates, dropped = aggregates_of(summary)
        outcome = self._outcome(judged.state, judged.reason, judged.message)
        outcome.failure_class = judged.failure_class
        outcome.coverage = judged.coverage
        outcome.aggregates, outcome.aggregates_dropped = aggregates, dropped
        outcome.degraded = judged.degraded + self.degraded
        self._explain(outcome, judged, done)
        return outcome

    def _explain(self, outcome: Outcome, judged: Verdict, done: int) -> None:
        """A reason that says more than a count, where there is one."""
        stopped = self._stopped
        if stopped is not None and (judged.state == "Failed" or stopped.reason == RunReason.COLLECTION_TIMEOUT):
            outcome.state, outcome.reason = "Failed", stopped.reason
            message = f"{stopped.message}; {judged.message}"[:MAX_MESSAGE]
            if stopped.reason == RunReason.COLLECTION_TIMEOUT and self._end is not None:
                message = explained(message[:_BESIDE_A_LOG], self._end.file, self._end.lines)
            outcome.message = well_formed(message)
            outcome.failure_class = stopped.failure_class or judged.failure_class
        elif not done and self._gateway is not None:
            for name, words in self._gateway.dead_models().items():
                outcome.reason = RunReason.MODEL_UNAVAILABLE
                outcome.message = f"model {name} answered no call: {words}"[:MAX_MESSAGE]

    def _failed(self, failure: JobFailed) -> Outcome:
        outcome = self._outcome("Failed", failure.reason, failure.message[:MAX_MESSAGE])
        outcome.failure_class = failure.failure_class
        if self.progress.total:
            outcome.coverage = self.progress.done / self.progress.total
        return outcome

    def _outcome(self, state: JobState, reason: str = "", message: str = "") -> Outcome:
        usage = self._gateway.usage() if self._gateway else {}
        # What this process knows itself, no host may say otherwise.
        versions = (self._registry.versions if self._registry else {}) | own_versions()
        outcome = base_outcome(self.plan, self.progress.snapshot(), usage, versions)
        outcome.state, outcome.reason, outcome.message = state, reason, well_formed(message[:MAX_MESSAGE])
        outcome.warnings = [*self.warnings, *self._unmetered_warnings()]
        outcome.host_kernel = self._registry.kernel if self._registry else ""
        outcome.environment_digest = self.environment.digest if self.environment else None
        return outcome

    def _unmetered_warnings(self) -> list[str]:
        bound, calls = self.plan.max_tokens, self._gateway.unmetered_calls() if self._gateway else 0
        if bound is None or not calls:
            return []
        return [f"{calls} model calls stated no tokens, so {bound.setting} ({bound.value}) does not count them"]

    def _write(self, outcome: Outcome) -> None:
        write_outcome(outcome, self.paths, in_full=self._results_are_ours)

    def _provenance(self) -> dict[str, Any]:
        return self.provenance.document(
            versions=self._registry.versions if self._registry else {},
            kernel=self._registry.kernel if self._registry else "",
            environment_digest=self.environment.digest if self.environment else None,
            facts=self._gateway.facts() if self._gateway else {},
            usage=self._gateway.usage() if self._gateway else {},
        )

    def _write_report(self, outcome: Outcome) -> None:
        """Trouble is logged, not raised: the page is a view of what other files hold."""
        assert self._journal is not None
        try:
            write_report(
                self.paths.attempt(self.plan.attempt),
                f"{self.plan.namespace}/{self.plan.job}",
                outcome,
                self._rollouts,
                self._journal,
            )
        except Exception:
            log.exception("report.html could not be completed")

    def _write_provenance(self) -> None:
        """Trouble is logged, not raised: it must not cost a result."""
        if not self._results_are_ours:
            return
        try:
            self.provenance.write(self._provenance())
        except Exception:
            log.exception("provenance.json could not be written")


def _reason_of(error: Exception) -> RunReason:
    match error:
        case DatasetError():
            return error.reason
        case BucketError():
            return RunReason.UPLOAD_FAILED
        case ForeignJournal():
            return RunReason.RESULTS_NOT_FRESH
        case _:
            return RunReason.EVALUATION_FAILED


def _cut_off(rollout: Rollout, journal: Journal) -> bool:
    """Whether a rollout was not run, or not to its end, since the job had spent what it may."""
    failure = journal.failures.get(rollout.key)
    if failure is None:
        return rollout.key not in journal.results
    return failure.failure_class is FailureClass.BUDGET


def _client(*, trust_env: bool = True) -> aiohttp.ClientSession:
    """A session without limits or time-outs of its own: whoever uses it sets them."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=trust_env,
    )
