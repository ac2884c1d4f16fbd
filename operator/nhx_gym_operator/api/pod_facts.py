"""Reading a job's pod as the API server shows it: whose it is, and what its parts do in the kubelet's own words."""

from __future__ import annotations

from typing import Any

from .constants import ATTEMPT_LABEL, ORDINAL_LABEL, ROLE_LABEL

Pod = dict[str, Any]


def role(pod: Pod) -> str:
    """One of `constants.Role`, or empty if the label was taken away."""
    return _label(pod, ROLE_LABEL)


def attempt(pod: Pod) -> int:
    """The attempt that the pod belongs to; 0 if its label was taken away."""
    return _number(pod, ATTEMPT_LABEL)


def ordinal(pod: Pod) -> int:
    """Which of the attempt's hosts the pod is; 0 if its label was taken away."""
    return _number(pod, ORDINAL_LABEL)


def container(pod: Pod, name: str) -> Pod | None:
    """The container, or init container, of that name in the pod's spec."""
    spec = pod["spec"]
    every = [*(spec.get("initContainers") or []), *spec["containers"]]
    return next((entry for entry in every if entry["name"] == name), None)


def statuses(pod: Pod) -> list[Pod]:
    """Of init containers first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def state(pod: Pod, name: str) -> Pod:
    """`{"waiting"|"running"|"terminated": {...}}` of a container, empty before the kubelet has one."""
    return next((entry.get("state") or {} for entry in statuses(pod) if entry["name"] == name), {})


def condition(pod: Pod, kind: str) -> Pod | None:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry["type"] == kind), None)


def _label(pod: Pod, name: str) -> str:
    return (pod["metadata"].get("labels") or {}).get(name) or ""


def _number(pod: Pod, label: str) -> int:
    text = _label(pod, label)
    # A label that is longer is nobody's count.
    return int(text) if text.isdigit() and len(text) < 10 else 0
