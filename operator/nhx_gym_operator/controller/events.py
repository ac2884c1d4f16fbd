"""Kubernetes Events for people who look at `kubectl describe`: one for each change of a condition."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

from ..api.conditions import EXPECTED_WHILE_FALSE, NOTICES, ConditionType, RunReason
from ..api.constants import FIELD_MANAGER
from .kube import ApiError, KubeClient
from .observation import PodEvent

Manifest = dict[str, Any]

MESSAGE_LIMIT = 1000
"""The API server takes 1,024 characters of an event's message."""
BRIEF = 300
"""Characters that tables of events can show."""
_BAD_WHEN_TRUE = {ConditionType.FAILED, ConditionType.DEGRADED, *NOTICES}

logger = logging.getLogger(__name__)


def of_transitions(job: Manifest, old: Iterable[Manifest], new: Iterable[Manifest]) -> list[Manifest]:
    """Events for conditions whose status or reason changed. The name is made from the change, so that
    the same one is never told twice."""
    before = {entry["type"]: (entry["status"], entry["reason"]) for entry in old}
    return [_event(job, entry) for entry in new if before.get(entry["type"]) != (entry["status"], entry["reason"])]


def about_pods(found: Iterable[Manifest]) -> tuple[PodEvent, ...]:
    """Other components' events, in the order in which they were last seen."""
    return tuple(
        PodEvent(event["involvedObject"].get("uid", ""), event.get("reason", ""), event.get("message", ""))
        for event in sorted(found, key=_last_seen)
    )


def _last_seen(event: Manifest) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]


async def publish(api: KubeClient, events: Iterable[Manifest]) -> None:
    """An event that cannot be written costs a log line and nothing else."""
    for event in events:
        try:
            await api.create(event)
        except ApiError as error:
            if not error.already_exists and not error.namespace_ends:
                logger.warning("Event %s could not be written: %s", event["reason"], error)


def _event(job: Manifest, condition: Manifest) -> Manifest:
    return event(
        job,
        change="/".join((condition["type"], condition["status"], condition["reason"], condition["lastTransitionTime"])),
        reason=condition["reason"],
        message=f"{condition['type']}={condition['status']}: {_brief(condition['message'])}",
        severity=_severity(condition),
        moment=condition["lastTransitionTime"],
    )


def _brief(message: str) -> str:
    """Of a long message the first line, which says what is wrong and what to change; the condition has all of it."""
    return message if len(message) <= BRIEF else message.partition("\n")[0]


def event(about: Manifest, *, change: str, reason: str, message: str, severity: str, moment: str) -> Manifest:
    """An event about an object; `change` is what makes it another event than one about the same object before."""
    metadata = about["metadata"]
    digest = hashlib.sha256(f"{metadata['uid']}/{change}".encode()).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][:200].rstrip('-.')}.{digest[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": severity,
        "reason": reason,
        "message": message[:MESSAGE_LIMIT],
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
    }


def _severity(condition: Manifest) -> str:
    holds = condition["status"] == "True"
    if condition["reason"] == RunReason.CANCELLED:
        return "Normal"
    good = not holds if condition["type"] in _BAD_WHEN_TRUE else holds or condition["reason"] in EXPECTED_WHILE_FALSE
    return "Normal" if good else "Warning"
