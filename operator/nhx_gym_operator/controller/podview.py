"""Reading a pod as the control loop does: `api.pod_facts`, and what follows for a job from what stands there."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..api.constants import Role
from ..api.pod_facts import attempt as attempt
from ..api.pod_facts import condition as condition
from ..api.pod_facts import container as container_of
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


def disruption(pod: Manifest) -> Manifest:
    """The condition by which the cluster says that it takes the pod away, and why; empty if it does not."""
    entry = condition(pod, "DisruptionTarget") or {}
    return entry if entry.get("status") == "True" else {}


def created(pod: Manifest) -> datetime:
    return parse_time(pod["metadata"]["creationTimestamp"])


def _status(pod: Manifest, container: str) -> dict[str, Any]:
    return next((status for status in statuses(pod) if status["name"] == container), {})


def terminated(pod: Manifest, container: str) -> dict[str, Any] | None:
    return state(pod, container).get("terminated")


def last_end(pod: Manifest, container: str) -> dict[str, Any] | None:
    """How the container ended before it was, or is to be, started again in its place."""
    status = _status(pod, container)
    return (status.get("lastState") or {}).get("terminated")


def latest_end(pod: Manifest, container: str) -> dict[str, Any] | None:
    """How it ended last, whether or not it was started again."""
    return terminated(pod, container) or last_end(pod, container)


def restarts(pod: Manifest, container: str) -> int:
    """How often the container was started again in this pod."""
    return _status(pod, container).get("restartCount", 0)


def deaths(pod: Manifest, container: str) -> int:
    """How often the container has ended in this pod."""
    return restarts(pod, container) + bool(not is_running(pod, container) and latest_end(pod, container))


def life(pod: Manifest, container: str) -> str:
    """Tells the container's present process from those before it."""
    return f"{uid(pod)}/{restarts(pod, container)}"


def is_started_again(pod: Manifest, container: str) -> bool:
    """Whether the kubelet does that after the container's latest end, by the rules that the API server has kept of
    those that were asked for."""
    ended = latest_end(pod, container)
    if ended is None or has_ended(pod) or is_terminating(pod):
        return False
    rules = (container_of(pod, container) or {}).get("restartPolicyRules") or ()
    return any(_fits(rule, ended.get("exitCode")) for rule in rules)


def _fits(rule: Manifest, code: int | None) -> bool:
    codes = rule.get("exitCodes") or {}
    is_in = code in (codes.get("values") or ())
    return rule.get("action") == "Restart" and is_in == (codes.get("operator") == "In")


def is_running(pod: Manifest, container: str) -> bool:
    return "running" in state(pod, container)


def has_started(pod: Manifest, container: str) -> bool:
    return bool({"running", "terminated"} & state(pod, container).keys()) or bool(last_end(pod, container))


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
