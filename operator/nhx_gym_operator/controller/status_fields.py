"""The fields of a job's status beside its conditions, and what each is filled from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from ..api.conditions import NOTICES, ConditionType, NoticeReason
from ..api.constants import (
    CONTAINER_EVALUATE,
    CONTAINER_GATE,
    CONTAINER_HOST,
    CONTAINER_STAGE,
    CONTAINER_STAGE_DATASET,
)
from ..api.egress import MAX_NAMED
from ..api.outcome import MAX_AGGREGATE_NAME, MAX_AGGREGATES, REWARD
from ..api.status import JobHostPod
from ..api.wire.endpoints import EgressUse, ModelUsage, Progress
from ..api.wire.reports import Aggregate, Outcome
from ..workloads import storage
from ..workloads.workload import Workload
from . import podview
from .status_draft import StatusDraft

Manifest = dict[str, Any]

_ROLES = {
    CONTAINER_EVALUATE: "evaluator",
    CONTAINER_STAGE: "stage",
    CONTAINER_STAGE_DATASET: "stage",
    CONTAINER_GATE: "gate",
    CONTAINER_HOST: "gymHost",
}


def show_progress(draft: StatusDraft, progress: Progress) -> None:
    """Counts and running mean. Counts of 0 of 0 say nothing and are not shown."""
    if progress.total:
        finished = progress.done + progress.failed
        before = draft.data.get("progress") or {}
        # With every rollout, not with every call: each change is a write to the API server.
        if finished != before.get("done", 0) + before.get("failed", 0):
            _show_usage(draft, progress.usage)
            _show_egress(draft, progress.egress)
        shown: dict[str, Any] = {
            "done": progress.done,
            "failed": progress.failed,
            "total": progress.total,
            "summary": f"{finished}/{progress.total}",
        }
        if progress.mean_reward is not None:
            shown["meanReward"] = progress.mean_reward
            draft.data["reward"] = _shown(progress.mean_reward)
        draft.data["progress"] = shown
    if progress.hosts:
        show_hosts(draft, progress.hosts_ready, progress.hosts)
    for notice in progress.notices:
        if notice.type in NOTICES:
            draft.set(ConditionType(notice.type), True, notice.reason or notice.type, notice.message)
    _withdraw_doubt(draft, progress)


def _withdraw_doubt(draft: StatusDraft, progress: Progress) -> None:
    """A doubt is repeated until it is settled. An evaluator that has just begun again has none yet."""
    doubt = ConditionType.MODEL_IN_DOUBT
    is_said = any(notice.type == doubt for notice in progress.notices)
    if draft.is_true(doubt) and not is_said and any(used.calls for used in progress.usage.values()):
        draft.set(doubt, False, NoticeReason.MODELS_ANSWER, "a model that was in doubt has answered")


def show_hosts(draft: StatusDraft, ready: int, desired: int) -> None:
    draft.data["hosts"] = {"ready": ready, "desired": desired, "summary": f"{ready}/{desired}"}


def show_host_pods(draft: StatusDraft, records: Iterable[JobHostPod]) -> None:
    """The pod of each host, and how many it has lost: what an operator goes by that starts after this one."""
    shown = [record.to_dict() for record in records]
    if shown or "hostPods" in draft.data:
        draft.data["hostPods"] = shown


def show_results(draft: StatusDraft, workload: Workload) -> None:
    """Where the bundle will be, and the image that can read it there."""
    shown = draft.data.setdefault("results", {})
    shown["location"] = storage.results_location(workload)
    shown["image"] = workload.images["evaluator"]


def show_outcome(draft: StatusDraft, outcome: Outcome) -> None:
    """Everything that was scored, whether the job succeeded or not."""
    show_progress(draft, outcome.progress.model_copy(update={"usage": outcome.usage}))
    data = draft.data
    aggregates = _fitting(outcome.aggregates)
    if aggregates:
        data["aggregates"] = [_camel(entry.model_dump(exclude_none=True)) for entry in aggregates]
    dropped = outcome.aggregates_dropped + len(outcome.aggregates) - len(aggregates)
    if dropped:
        data["aggregatesDropped"] = dropped
    if outcome.coverage is not None:
        data["coverage"] = outcome.coverage
    _show_usage(draft, outcome.usage)
    _show_egress(draft, outcome.progress.egress)
    if outcome.results_path:
        data.setdefault("results", {})["path"] = outcome.results_path
    if outcome.results_location:
        data.setdefault("results", {})["location"] = outcome.results_location
    reward = next((entry.value for entry in outcome.aggregates if entry.name == REWARD), None)
    if reward is not None:
        data["reward"] = _shown(reward)
    ran = data.setdefault("ran", {})
    if outcome.versions:
        ran["versions"] = outcome.versions
    if outcome.host_kernel:
        ran["hostKernel"] = outcome.host_kernel[:512]
    if outcome.environment_digest:
        ran["environmentDigest"] = outcome.environment_digest


def _show_usage(draft: StatusDraft, usage: Mapping[str, ModelUsage]) -> None:
    if usage:
        draft.data["usage"] = {name: _camel(used.model_dump(exclude_none=True)) for name, used in usage.items()}


def _show_egress(draft: StatusDraft, used: EgressUse | None) -> None:
    """Only entries that the job has: whoever stands in an evaluator's place writes no names into its status."""
    if used is None:
        return
    known = [(entry, requests) for entry, requests in used.passed.items() if entry in draft.egress_allowed]
    draft.data["egress"] = {
        "requests": used.requests,
        "refused": used.refused,
        "bytesSent": used.sent,
        "bytesReceived": used.received,
        "passed": [{"entry": entry, "requests": requests} for entry, requests in known[:MAX_NAMED]],
    }


def _shown(reward: float) -> str:
    """For the table: two decimals, unless a verifier counts in astronomical numbers."""
    return f"{reward:.2f}" if abs(reward) < 1e9 else f"{reward:.2e}"


def _fitting(aggregates: Iterable[Aggregate]) -> list[Aggregate]:
    """What a status takes: the API server would refuse the whole of it for one name that is too long or
    stands twice."""
    by_name: dict[str, Aggregate] = {}
    for entry in aggregates:
        if len(entry.name) <= MAX_AGGREGATE_NAME:
            by_name.setdefault(entry.name, entry)
    return list(by_name.values())[:MAX_AGGREGATES]


def show_images(draft: StatusDraft, pods: Iterable[Manifest]) -> None:
    """Image digests as the kubelet reports them, by role."""
    images = {
        _ROLES[status["name"]]: status["imageID"]
        for pod in pods
        for status in podview.statuses(pod)
        if status["name"] in _ROLES and status.get("imageID")
    }
    if images:
        ran = draft.data.setdefault("ran", {})
        ran["images"] = {**ran.get("images", {}), **images}


def _camel(fields: dict[str, Any]) -> dict[str, Any]:
    return {to_camel(name): value for name, value in fields.items()}
