"""observe: gather all that exists for one job into one immutable value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from ..api.conditions import FINAL
from ..api.job import AgentEvalJob
from ..api.resource import ObjectMeta, first_problem
from ..api.status import JobStatus
from ..api.wire.endpoints import Progress
from ..workloads import names, storage
from . import events, podview
from .caches import Caches
from .inputs import InputReader
from .kube import CLAIMS, EVENTS, PODS, POLICIES, SERVICES, Resource
from .measuring.findings import Standing
from .observation import Observation, PodEvent, PodsRefused
from .policies.placement import needs_runtime_class
from .settings import Installation

Manifest = dict[str, Any]


class Observer:
    """Caches and a few reads on demand: what a job names is looked up only when pods are to be made."""

    def __init__(
        self,
        installation: Installation,
        caches: Caches,
        inputs: InputReader,
        standing: Callable[[], Standing | None] = lambda: None,
    ) -> None:
        self._installation = installation
        self._caches = caches
        self._inputs = inputs
        self._standing = standing

    async def observe(
        self,
        raw: Manifest,
        progress: Progress | None,
        refusal: PodsRefused | None,
        progress_life: str = "",
        is_silent: bool = False,
    ) -> Observation:
        """Everything about the job `raw`. Raises `ApiError` if a read fails for another reason than that
        the object is absent or forbidden."""
        job, invalid = parse_job(raw)
        namespace, uid = job.metadata.namespace, job.metadata.uid
        pods = tuple(self._own(PODS, namespace, uid))
        is_over = bool(job.metadata.deletion_timestamp) or _is_final(job)
        pinned = job.status.placement is not None
        sandbox = self._installation.settings.sandbox
        looks_up = not invalid and not is_over
        return Observation(
            job=job,
            installation=self._installation,
            runtime_class=(
                await self._inputs.runtime_class(sandbox.runtime_class_name)
                if looks_up and not pinned and needs_runtime_class(sandbox)
                else None
            ),
            standing=self._standing(),
            inputs=(await self._inputs.read(namespace, job.spec) if looks_up and not _has_evaluator(pods) else None),
            service=self._named(SERVICES, namespace, uid, names.service_name(job.metadata.name)),
            policies=tuple(self._own(POLICIES, namespace, uid)),
            claim=None if invalid else self._claim(job),
            pods=pods,
            ghosts=tuple(pod for pod in self._caches.ghosts(uid) if _is_child(pod, namespace, uid)),
            pod_events=self._events_of(pods),
            progress=progress,
            progress_life=progress_life,
            is_silent=is_silent,
            refusal=refusal,
            namespace_ends=not is_over and _loses_pods(job, pods) and await self._inputs.namespace_ends(namespace),
            invalid=invalid,
        )

    def _own(self, resource: Resource, namespace: str, uid: str) -> list[Manifest]:
        """Objects that carry the job's label and do belong to it: anybody may write a label."""
        return [obj for obj in self._caches[resource].owned_by(uid) if _is_child(obj, namespace, uid)]

    def _named(self, resource: Resource, namespace: str, uid: str, name: str) -> Manifest | None:
        """The job's own object of that name. One that is being deleted counts: its name is taken."""
        return next((obj for obj in self._own(resource, namespace, uid) if obj["metadata"]["name"] == name), None)

    def _claim(self, job: AgentEvalJob) -> Manifest | None:
        """The claim made for the job: one that outlives it has no owner, and is known by name and label."""
        namespace, uid = job.metadata.namespace, job.metadata.uid
        name = storage.own_claim_name(job.spec.results, job.metadata.name, uid)
        claim = self._caches[CLAIMS].named(namespace, name) if name else None
        return claim if claim and (_is_child(claim, namespace, uid) or storage.is_retained_by(claim, uid)) else None

    def _events_of(self, pods: tuple[Manifest, ...]) -> tuple[PodEvent, ...]:
        return tuple(
            event
            for pod in pods
            if not podview.has_ended(pod)
            for event in events.about_pods(
                entry
                for entry in self._caches[EVENTS].owned_by(podview.uid(pod))
                if entry["metadata"].get("namespace") == pod["metadata"].get("namespace")
            )
        )


def parse_job(raw: Manifest) -> tuple[AgentEvalJob, str]:
    """The job, and why its spec cannot be read; a job without a readable spec has None in its place."""
    try:
        return AgentEvalJob.model_validate(raw), ""
    except ValidationError as error:
        # With its status: a job that has ended stays as it ended, and one that is refused is refused once.
        job = AgentEvalJob.model_construct(
            metadata=ObjectMeta.model_validate(raw["metadata"]),
            status=JobStatus.model_validate(raw.get("status") or {}),
            spec=None,
        )
        return job, f"{first_problem(error)}; delete the job and apply it again as the present CRD asks"


def _is_child(obj: Manifest, namespace: str, uid: str) -> bool:
    metadata = obj["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return metadata.get("namespace") == namespace and any(owner["uid"] == uid for owner in owners)


def _is_final(job: AgentEvalJob) -> bool:
    return any(entry.type in FINAL and entry.status == "True" for entry in job.status.conditions or ())


def _loses_pods(job: AgentEvalJob, pods: tuple[Manifest, ...]) -> bool:
    return any(map(podview.is_terminating, pods)) or bool(job.status.attempt and not _has_evaluator(pods))


def _has_evaluator(pods: tuple[Manifest, ...]) -> bool:
    return any(podview.is_evaluator(pod) and not podview.has_ended(pod) for pod in pods)
