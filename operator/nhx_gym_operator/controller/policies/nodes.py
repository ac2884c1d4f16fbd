"""A pod whose node does not report: what is known of it may be old, and the cluster gives it up in the end.

The operator looks at no node. That one is away it learns from the node controller, which says of each pod there that it
is not ready, though by the kubelet's last word all its containers were.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ...api.conditions import ConditionType, PodReason
from .. import podview
from ..attempt import Attempt
from ..clock import format_time, parse_time
from ..settings import Timeouts
from ..status_draft import StatusDraft
from . import deadlines, sandbox_lacks

Manifest = dict[str, Any]

_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")


def away_since(pod: Manifest) -> datetime | None:
    """Since when the pod's node has not reported; None if it does, as far as is known."""
    ready = podview.condition(pod, "Ready")
    containers = pod.get("status", {}).get("containerStatuses", ())
    all_ready = bool(containers) and all(status.get("ready") for status in containers)
    if ready is None or ready["status"] != "False" or not all_ready or not ready.get("lastTransitionTime"):
        return None
    return parse_time(ready["lastTransitionTime"])


def given_up_at(pod: Manifest, timeouts: Timeouts, now: datetime) -> datetime | None:
    """When a pod whose node is away is given up: by the cluster, after what the pod tolerates. Where that has passed
    and the pod is still there, and where the pod tolerates all, by us: while no node reports at all, the cluster gives
    up none (https://kubernetes.io/docs/concepts/architecture/nodes/#rate-limits-on-eviction)."""
    since = away_since(pod)
    if since is None:
        return None
    borne, ours = _tolerated_seconds(pod), timedelta(seconds=deadlines.of_pods(timeouts).seconds)
    if borne is None:
        return since + ours
    by_cluster = since + timedelta(seconds=borne)
    return by_cluster if now < by_cluster else by_cluster + ours


def is_given_up(pod: Manifest, timeouts: Timeouts, now: datetime) -> bool:
    """Whether the wait for its node is over, and nobody else ends it."""
    ends = given_up_at(pod, timeouts, now)
    return ends is not None and now >= ends


def words_of(pod: Manifest, timeouts: Timeouts, now: datetime) -> str:
    """What is to be said of a pod whose node is away; empty if it is not."""
    since, ends = away_since(pod), given_up_at(pod, timeouts, now)
    if since is None or ends is None:
        return ""
    return (
        f"node {pod['spec'].get('nodeName')!r} of pod {podview.name(pod)!r} has not reported since "
        f"{format_time(since)}, so that what is said of the pod may be old; unless the node comes back, the pod is "
        f"given up at {format_time(ends)} and its work done again elsewhere"
    )


def show(draft: StatusDraft, attempt: Attempt, timeouts: Timeouts, now: datetime) -> None:
    """Whose node is away, on the condition of the pod that it concerns. It may be at work all the same."""
    for words in filter(None, (words_of(host, timeouts, now) for host in attempt.hosts)):
        sandbox_lacks.show(draft, PodReason.NODE_NOT_READY, words)
    if attempt.evaluator and (words := words_of(attempt.evaluator, timeouts, now)):
        runs = draft.is_true(ConditionType.RUNNING)
        draft.set(ConditionType.RUNNING, runs, PodReason.NODE_NOT_READY, words)


def _tolerated_seconds(pod: Manifest) -> float | None:
    """How long the pod may stay on a node that is away; None: for ever."""
    found = []
    for taint in _TAINTS:
        tolerations = [each for each in pod["spec"].get("tolerations", ()) if _tolerates(each, taint)]
        if not tolerations:
            return 0.0
        bounds = [each.get("tolerationSeconds") for each in tolerations]
        found += [float(bound) for bound in bounds if bound is not None]
    return min(found, default=None)


def _tolerates(toleration: Manifest, taint: str) -> bool:
    return toleration.get("key") in (taint, None) and toleration.get("effect") in ("NoExecute", "", None)
