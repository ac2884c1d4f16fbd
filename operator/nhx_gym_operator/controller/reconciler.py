"""One pass over one job or FileSet: observe, decide, act, write the status, tell what changed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from ..api.conditions import ConditionType, SandboxReason
from ..api.fileset import FileSet
from ..api.resource import first_problem
from . import clock, events, metrics, podview
from .act import ActionRefused, Actor
from .cached_reads import CachedReads
from .caches import Caches, owner_uid
from .decide import decide
from .filesets import RESOLVED_AGAIN_SECONDS, UNRESOLVED_AGAIN_SECONDS, file_set_status
from .inputs import InputReader
from .kube import EVENTS, FILESETS, JOBS, PODS, ApiError, KubeClient, Resource
from .measuring.monitor import Monitor
from .observation import Action, CreateTogether, Decision, PodsRefused
from .observe import Observer
from .policies import managed_by
from .progress_poller import ProgressPoller
from .queue import WorkQueue
from .settings import Installation
from .staging_reports import StagingReport
from .status_writer import StatusWriter

Manifest = dict[str, Any]

WORKERS = 8
REFUSAL_BASE_SECONDS = 1.0
REFUSAL_LIMIT_SECONDS = 30.0
INVALID_LIMIT_SECONDS = 600.0
"""Of the pause after a status that was refused: nothing but another definition mends that."""

logger = logging.getLogger(__name__)


class Subject(StrEnum):
    """What a key of the queue is the UID of."""

    JOB = "job"
    FILE_SET = "fileset"


@dataclass(frozen=True)
class Key:
    subject: Subject
    uid: str


class Reconciler:
    """Owns queue, caches and everything else that lives as long as the operator does."""

    def __init__(self, installation: Installation, api: KubeClient, *, now: Callable[[], datetime] = clock.now) -> None:
        self._api = api
        self._now = now
        self._queue: WorkQueue[Key] = WorkQueue()
        self.caches = Caches(self._enqueue_for, installation.settings.watch_namespaces)
        self._inputs = InputReader(CachedReads(api))
        self._monitor = Monitor(installation, api, self._inputs, self._enqueue_unplaced, now=now)
        self._observer = Observer(installation, self.caches, self._inputs, self._monitor.standing)
        self._actor = Actor(api, self.caches)
        self._statuses = StatusWriter(self._actor, api, now)
        self._poller = ProgressPoller(lambda uid: self._queue.add(Key(Subject.JOB, uid)))
        self._refusals: dict[str, tuple[int, PodsRefused]] = {}
        self._reports: dict[str, StagingReport] = {}
        """By the FileSet's UID: the latest that a job's pod said about it. What has been written needs none."""

    async def run(self) -> None:
        """Works until cancelled, and may be called again then. The caches must have been primed."""
        self._enqueue_all()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poller.run(), name="progress poller")
            tasks.create_task(self._monitor.run(), name="sandbox measurement")
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"worker {number}")

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                again = await self._reconcile(key)
            except ApiError as error:
                pause = self._queue.add_after_failure(key, INVALID_LIMIT_SECONDS if error.invalid else None)
                level = logging.DEBUG if error.conflict or error.namespace_ends else logging.WARNING
                logger.log(level, "%s %s: %s; again in %.1f s", key.subject, key.uid, error, pause)
            except Exception:
                pause = self._queue.add_after_failure(key)
                logger.exception("%s %s failed; again in %.1f s", key.subject, key.uid, pause)
            else:
                self._queue.succeeded(key)
                if again is not None:
                    self._queue.add_after(key, again)
            finally:
                self._queue.done(key)

    async def _reconcile(self, key: Key) -> float | None:
        if key.subject is Subject.FILE_SET:
            return await self._reconcile_file_set(key.uid)
        return await self._reconcile_job(key.uid)

    async def _reconcile_job(self, uid: str) -> float | None:
        raw = self.caches[JOBS].get(uid)
        if raw is None:
            self._forget(uid)
            return None
        if not managed_by.is_ours(raw):
            return None
        refusal = self._refusals[uid][1] if uid in self._refusals else None
        progress, life = self._poller.latest(uid), self._poller.life(uid)
        observation = await self._observer.observe(raw, progress, refusal, life, self._poller.is_silent(uid))
        decision = decide(observation, self._now())
        self._poller.watch(uid, decision.poll)
        self._pass_on(raw["metadata"]["namespace"], decision.staged)
        again = await self._perform(uid, decision)
        if "deletionTimestamp" not in raw["metadata"]:
            await self._write_job_status(raw, decision.status)
        return min((seconds for seconds in (again, decision.requeue_after) if seconds is not None), default=None)

    async def _perform(self, uid: str, decision: Decision) -> float | None:
        """Seconds until the next look, for an action that was put off. At once if one was refused; what comes
        after it is left for then."""
        put_off = []
        for action in decision.actions:
            try:
                left = await self._actor.perform(action)
            except ActionRefused as refused:
                self._note_refusal(uid, refused)
                return 0.0
            if left is not None:
                put_off.append(left)
            self._end_refusal(uid, action)
        return min(put_off, default=None)

    def _note_refusal(self, uid: str, refused: ActionRefused) -> None:
        count = self._refusals[uid][0] + 1 if uid in self._refusals else 0
        pause = min(REFUSAL_LIMIT_SECONDS, REFUSAL_BASE_SECONDS * 2**count)
        # Jobs that were refused together must not ask together again.
        retry_at = self._now() + timedelta(seconds=pause * random.uniform(0.75, 1.25))
        self._refusals[uid] = (count, PodsRefused(refused.reason, refused.message, retry_at))
        logger.info("job %s: %s; again in %.0f s", uid, refused.message, pause)

    def _end_refusal(self, uid: str, action: Action) -> None:
        if isinstance(action, CreateTogether):
            self._refusals.pop(uid, None)

    async def _write_job_status(self, raw: Manifest, status: Manifest) -> None:
        try:
            changed = await self._statuses.write(raw, status)
        except ApiError as error:
            if error.not_found:
                return
            raise
        if changed:
            metrics.USAGE.add(raw, status)
            before = (raw.get("status") or {}).get("conditions", ())
            if _tells_of_open_sandbox(status):
                metadata = raw["metadata"]
                self._monitor.suspect(metadata["namespace"], self._nodes_of_hosts(metadata["uid"]))
            await events.publish(self._api, events.of_transitions(raw, before, status.get("conditions", ())))

    def _nodes_of_hosts(self, uid: str) -> tuple[str, ...]:
        hosts = [pod for pod in self.caches[PODS].owned_by(uid) if podview.is_host(pod)]
        return tuple(dict.fromkeys(pod["spec"]["nodeName"] for pod in hosts if pod["spec"].get("nodeName")))

    async def _reconcile_file_set(self, uid: str) -> float | None:
        raw = self.caches[FILESETS].get(uid)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            self._reports.pop(uid, None)
            self._statuses.forget(uid)
            return None
        try:
            file_set = FileSet.model_validate(raw)
        except ValidationError as error:
            # Jobs that name it say so; there is no status of it that its own schema would take.
            logger.warning("FileSet %s: %s", raw["metadata"]["name"], first_problem(error))
            return None
        content = await self._inputs.content_of(file_set)
        status = file_set_status(file_set, content, self._reports.get(uid), self._now())
        await self._statuses.write(raw, status)
        resolved = status["conditions"][0]["status"] == "True"
        return RESOLVED_AGAIN_SECONDS if resolved else UNRESOLVED_AGAIN_SECONDS

    def _pass_on(self, namespace: str, reports: Iterable[StagingReport]) -> None:
        """From a job to the FileSets that its pods have read. What a pod says counts in its own namespace only."""
        for report in reports:
            uid = report.plan.uid
            known, raw = self._reports.get(uid), self.caches[FILESETS].get(uid)
            if raw is None or raw["metadata"]["namespace"] != namespace:
                continue
            if known is None or report.time > known.time:
                self._reports[uid] = report
                self._queue.add(Key(Subject.FILE_SET, uid))

    def _forget(self, uid: str) -> None:
        self._refusals.pop(uid, None)
        self._statuses.forget(uid)
        self._poller.forget(uid)
        self.caches.forget_job(uid)
        self._queue.forget(Key(Subject.JOB, uid))

    def _enqueue_all(self) -> None:
        """What a cancelled worker had in its hands is in the queue no more."""
        for resource in (JOBS, FILESETS):
            for raw in self.caches[resource].all():
                self._enqueue_for(resource, raw)

    def _enqueue_unplaced(self) -> None:
        """Jobs that wait for a measurement, which is over."""
        for raw in self.caches[JOBS].all():
            if not (raw.get("status") or {}).get("placement"):
                self._queue.add(Key(Subject.JOB, raw["metadata"]["uid"]))

    def _enqueue_for(self, resource: Resource, obj: Manifest) -> None:
        """Puts into the queue what an object that changed may matter to."""
        if resource is JOBS or resource is FILESETS:
            subject = Subject.JOB if resource is JOBS else Subject.FILE_SET
            self._queue.add(Key(subject, obj["metadata"]["uid"]))
            return
        owner = owner_uid(obj)
        if resource is EVENTS:
            pod = self.caches[PODS].get(owner)
            owner = owner_uid(pod) if pod else ""
        if owner:
            self._queue.add(Key(Subject.JOB, owner))


def _tells_of_open_sandbox(status: Manifest) -> bool:
    conditions = status.get("conditions", ())
    return any(e["type"] == ConditionType.FAILED and e["reason"] == SandboxReason.SANDBOX_OPEN for e in conditions)
