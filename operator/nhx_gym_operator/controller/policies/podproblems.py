"""Why a pod does not start, from what the kubelet and the scheduler say about it.

The operator may not read Secrets. That one is missing it learns from the kubelet, whose messages are
taken apart here: `MountVolume.SetUp failed for volume "x" : secret "y" not found`, `references
non-existent secret key: k`, and for environment variables `couldn't find key k in Secret ns/y`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...api.conditions import AcceptedReason, PodReason
from .. import podview
from ..observation import PodEvent

Manifest = dict[str, Any]

_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_CONFIG_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError"}
_MOUNT_EVENTS = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
_PULL_SECRET_EVENT = "FailedToRetrieveImagePullSecret"
_SANDBOX_EVENT = "FailedCreatePodSandBox"

_VOLUME = re.compile(r'for volume "(?P<volume>[^"]+)"')
_OBJECT_ABSENT = re.compile(r'(?P<kind>secret|configmap) "(?P<name>[^"]+)" not found', re.IGNORECASE)
_VOLUME_KEY_ABSENT = re.compile(r"references non-existent (?P<kind>secret|config) key: (?P<key>\S+)", re.IGNORECASE)
_ENV_KEY_ABSENT = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) (?P<where>\S+)")

_ABSENT = {"secret": AcceptedReason.SECRET_NOT_FOUND, "configmap": AcceptedReason.CONFIG_MAP_NOT_FOUND}
_KEY_ABSENT = {
    "secret": AcceptedReason.SECRET_KEY_MISSING,
    "config": AcceptedReason.CONFIG_MAP_KEY_MISSING,
    "configmap": AcceptedReason.CONFIG_MAP_KEY_MISSING,
}
_SHOWN = {"secret": "Secret", "configmap": "ConfigMap", "config": "ConfigMap"}


@dataclass(frozen=True)
class PodProblem:
    """What keeps a pod from starting."""

    reason: StrEnum
    message: str
    missing_name: str = ""
    """The Secret or ConfigMap that is not there or lacks a key, which somebody can still mend; empty: it is no such."""


def find(pod: Manifest, events: Sequence[PodEvent]) -> PodProblem | None:
    """The nearest cause, or None while nothing is known to be wrong."""
    own = [event for event in events if event.pod_uid == podview.uid(pod)]
    where = f"pod {podview.name(pod)!r}"
    return (
        _unscheduled(pod, where)
        or _image(pod, own, where)
        or _container(pod, where)
        or _volume(pod, own, where)
        or _sandbox(pod, own, where)
    )


def _unscheduled(pod: Manifest, where: str) -> PodProblem | None:
    scheduled = podview.condition(pod, "PodScheduled")
    if scheduled is None or scheduled["status"] == "True":
        return None
    reason = PodReason.UNSCHEDULABLE
    return PodProblem(reason, f"{where} finds no node: {scheduled.get('message') or scheduled.get('reason', '')}")


def _image(pod: Manifest, events: Iterable[PodEvent], where: str) -> PodProblem | None:
    for container, waiting in podview.waiting(pod):
        if waiting.get("reason") not in _IMAGE_REASONS:
            continue
        words = waiting.get("message") or waiting["reason"]
        for event in events:
            if event.reason == _PULL_SECRET_EVENT:
                namespace = pod["metadata"]["namespace"]
                return PodProblem(
                    PodReason.PULL_SECRET_NOT_FOUND,
                    f"{where} cannot pull the image of {container!r}: {words}; a pull secret is missing in "
                    f"namespace {namespace!r}: {event.message}",
                )
        used = ", ".join(repr(secret.get("name")) for secret in pod["spec"].get("imagePullSecrets", ()))
        hint = f"; it uses the pull secrets {used} of namespace {pod['metadata']['namespace']!r}" if used else ""
        return PodProblem(PodReason.IMAGE_PULL_FAILED, f"{where} cannot pull the image of {container!r}: {words}{hint}")
    return None


def _container(pod: Manifest, where: str) -> PodProblem | None:
    for container, waiting in podview.waiting(pod):
        if waiting.get("reason") not in _CONFIG_REASONS:
            continue
        words = waiting.get("message") or waiting["reason"]
        what = f"container {container!r} of {where}"
        if found := _ENV_KEY_ABSENT.search(words):
            kind = found["kind"].lower()
            name = found["where"].rpartition("/")[2]
            return _absent_key(kind, name, found["key"], what)
        return _absent_object(words, what) or PodProblem(
            PodReason.CONTAINER_CONFIG_ERROR, f"{what} cannot be made: {words}"
        )
    return None


def _volume(pod: Manifest, events: Sequence[PodEvent], where: str) -> PodProblem | None:
    if podview.has_ended(pod) or any("running" in (s.get("state") or {}) for s in podview.statuses(pod)):
        # Events outlive their cause: once a container runs, every volume is mounted.
        return None
    for event in reversed(events):
        if event.reason not in _MOUNT_EVENTS:
            continue
        if found := _VOLUME_KEY_ABSENT.search(event.message):
            kind = found["kind"].lower()
            return _absent_key(kind, _volume_source(pod, event.message, kind), found["key"], where)
        return _absent_object(event.message, where) or PodProblem(
            PodReason.VOLUME_NOT_READY, f"{where} waits for a volume: {event.message}"
        )
    return None


def _sandbox(pod: Manifest, events: Sequence[PodEvent], where: str) -> PodProblem | None:
    if podview.statuses(pod) and any(podview.has_started(pod, s["name"]) for s in podview.statuses(pod)):
        return None
    for event in reversed(events):
        if event.reason == _SANDBOX_EVENT:
            return PodProblem(PodReason.CONTAINER_CONFIG_ERROR, f"{where} cannot be made: {event.message}")
    return None


def _absent_object(words: str, what: str) -> PodProblem | None:
    found = _OBJECT_ABSENT.search(words)
    if found is None:
        return None
    kind = found["kind"].lower()
    message = f"{_SHOWN[kind]} {found['name']!r} does not exist, needed by {what}; create it"
    return PodProblem(_ABSENT[kind], message, found["name"])


def _absent_key(kind: str, name: str, key: str, what: str) -> PodProblem:
    key = key.rstrip(".,;")
    message = f"{_SHOWN[kind]} {name!r} has no key {key!r}, needed by {what}; add it"
    return PodProblem(_KEY_ABSENT[kind], message, name)


def _volume_source(pod: Manifest, words: str, kind: str) -> str:
    found = _VOLUME.search(words)
    volume = podview.volume(pod, found["volume"]) if found else {}
    if kind == "secret":
        return volume.get("secret", {}).get("secretName", "?")
    return volume.get("configMap", {}).get("name", "?")
