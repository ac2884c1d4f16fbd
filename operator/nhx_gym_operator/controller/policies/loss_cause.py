"""By what an attempt was lost: one word for `spec.failurePolicy`, from what Kubernetes says of the evaluator's pod."""

from __future__ import annotations

from typing import Any

from ...api.constants import CONTAINER_EVALUATE
from ...api.failure_policy import LossCause
from .. import podview
from ..attempt import Attempt, last_evaluator
from ..observation import Observation
from . import restarts

Manifest = dict[str, Any]

_DISRUPTIONS = {
    "PreemptionByScheduler": LossCause.PREEMPTED,
    "EvictionByEvictionAPI": LossCause.EVICTED,
    "TerminationByKubelet": LossCause.EVICTED,
    "DeletionByTaintManager": LossCause.NODE_LOST,
    "DeletionByPodGC": LossCause.NODE_LOST,
}
"""Reasons of a pod's condition DisruptionTarget
(https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions)."""
_REASONS = {"Evicted": LossCause.EVICTED, "Preempting": LossCause.PREEMPTED, "NodeLost": LossCause.NODE_LOST}
"""`status.reason` of a pod that its kubelet or the node controller ended."""


def find(observation: Observation, attempt: Attempt) -> LossCause:
    """The nearest cause. A pod that is gone is judged by what this process last saw of it."""
    pod = last_evaluator(observation, attempt)
    if pod is None:
        return LossCause.UNKNOWN
    ended = podview.terminated(pod, CONTAINER_EVALUATE) or {}
    if attempt.evaluator is not None and _is_lost_by_its_ends(observation, pod):
        ended = podview.latest_end(pod, CONTAINER_EVALUATE) or {}
    if ended.get("reason") == LossCause.OOM_KILLED:
        return LossCause.OOM_KILLED
    told = _DISRUPTIONS.get(podview.disruption(pod).get("reason", "")) or _REASONS.get(
        pod.get("status", {}).get("reason", "")
    )
    if told:
        return told
    has_ended = bool(ended) or podview.has_ended(pod)
    if attempt.evaluator is not None and not has_ended:
        # It is lost all the same: nobody reports its end.
        return LossCause.NODE_LOST
    return LossCause.KILLED if has_ended and not podview.is_terminating(pod) else LossCause.DELETED


def _is_lost_by_its_ends(observation: Observation, pod: Manifest) -> bool:
    """Of one that is started again in its pod: it ended too often, or nobody does."""
    if not podview.is_started_again(pod, CONTAINER_EVALUATE):
        return False
    too_often = podview.deaths(pod, CONTAINER_EVALUATE) > restarts.limit(observation.job.spec)
    return too_often or restarts.is_under_way(pod)
