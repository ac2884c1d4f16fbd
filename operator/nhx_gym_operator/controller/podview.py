"""Reading a pod as the control loop does: `api.pod_facts`, and what follows for a job from what stands there."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..api.constants import Role
from ..api.pod_facts import attempt as attempt
from ..api.pod_facts import condition as condition
from ..api.pod_facts import ordinal as ordinal
from ..api.pod_facts import role, state, statuses
from .clock import parse_time

Manifest = dict[str, Any]


def uid(pod: Manifest) -> str:
    return pod["metadata"]["uid"]


def name(pod: Manifest) -> str:
    return pod["metadata"]["name"]


def is_host(pod: Manifest) -> bool:
    return role(pod) == Role.GYM_HOST


def is_reader(pod: Manifest) -> bool:
    """Whether it reads what a lost evaluator left."""
    return role(pod) == Role.OUTCOME_READER


def is_evaluator(pod: Manifest) -> bool:
    """Of either placement, and with its label taken away too."""
    return not is_host(pod) and not is_reader(pod)


def is_terminating(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def grace_over(pod: Manifest) -> datetime | None:
    """When a terminating pod's grace period is over; None for one that was not told to end."""
    moment = pod["metadata"].get("deletionTimestamp")
    return parse_time(moment) if moment else None


def phase(pod: Manifest) -> str:
    return pod.get("status", {}).get("phase", "Pending")


def has_ended(pod: Manifest) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def ends_by_itself(pod: Manifest) -> bool:
    """Whether the pod has ended or is about to: after a failed init container nothing starts any more, though the
    kubelet may not have said so yet."""
    inits = (
        status.get("state", {}).get("terminated") for status in pod.get("status", {}).get("initContainerStatuses", ())
    )
    return has_ended(pod) or any(end and end.get("exitCode") != 0 for end in inits)


def created(pod: Manifest) -> datetime:
    return parse_time(pod["metadata"]["creationTimestamp"])


def terminated(pod: Manifest, container: str) -> dict[str, Any] | None:
    return state(pod, container).get("terminated")


def is_running(pod: Manifest, container: str) -> bool:
    return "running" in state(pod, container)


def has_started(pod: Manifest, container: str) -> bool:
    return bool({"running", "terminated"} & state(pod, container).keys())


def waiting(pod: Manifest) -> list[tuple[str, dict[str, Any]]]:
    """Containers that wait for a reason of their own, with reason and message."""
    return [
        (status["name"], status["state"]["waiting"])
        for status in statuses(pod)
        if "waiting" in (status.get("state") or {})
    ]


def container_names(pod: Manifest) -> set[str]:
    spec = pod["spec"]
    every = [*spec.get("initContainers", ()), *spec["containers"], *spec.get("ephemeralContainers", ())]
    return {container["name"] for container in every}


def volume(pod: Manifest, volume_name: str) -> dict[str, Any]:
    for entry in pod["spec"].get("volumes", ()):
        if entry["name"] == volume_name:
            return entry
    return {}


def ip(pod: Manifest) -> str | None:
    return pod.get("status", {}).get("podIP")
