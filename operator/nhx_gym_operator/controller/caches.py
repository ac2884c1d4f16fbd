"""What the watches have shown: one store per kind, indexed by the job that an object belongs to.

Watch events, lists and the answers to our own writes all flow in here. A list that follows an expired
watch (410) names what exists and is silent about what vanished meanwhile, so stores are also compared
with a list of their own: at start, after every list that a watch begins with, and once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ..api.constants import JOB_UID_LABEL, MANAGED_BY, MANAGED_BY_LABEL
from .kube import (
    CLAIMS,
    EVENTS,
    FILESETS,
    JOBS,
    POD_EVENT_FIELDS,
    PODS,
    POLICIES,
    SERVICES,
    ApiError,
    KubeClient,
    Resource,
)

Manifest = dict[str, Any]
Listener = Callable[[Resource, Manifest], None]

VERIFY_SECONDS = 60.0
BLIND_SECONDS = 90.0
"""Without a list of a kind for so long, what is known of it counts as nothing: one that should have come has not."""
_FAILED_BASE_SECONDS, _FAILED_LIMIT_SECONDS = 2.0, 30.0
"""Pauses between tries of lists that failed."""
RELIST_DEBOUNCE_SECONDS = 1.0
PRIME_SECONDS = 120.0
"""An API server that starts answers 429 and 503 for a while, and 404 for a CRD that was just made."""
_GHOSTS_PER_JOB = 128
_DEAD_SECONDS, _DEAD_LIMIT = 300.0, 20_000
"""How long, and how many of a kind, UIDs that are gone are remembered. What a watch or list still brings of one is late
by seconds, by a request's deadline at most; an operator that runs for months must not remember every job."""

OURS = f"{MANAGED_BY_LABEL}={MANAGED_BY}"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """One kind that is watched, and with which selectors."""

    resource: Resource
    labels: str = ""
    fields: str = ""


KINDS = (
    Kind(JOBS),
    Kind(FILESETS),
    Kind(PODS, labels=OURS),
    Kind(SERVICES, labels=OURS),
    Kind(POLICIES, labels=OURS),
    Kind(CLAIMS, labels=OURS),
    Kind(EVENTS, fields=POD_EVENT_FIELDS),
)


class Store:
    """All objects of one kind by UID. An older version never replaces a newer one, and a late event
    never brings back what is gone."""

    def __init__(self, kind: Kind, listener: Listener) -> None:
        self.kind = kind
        self._listener = listener
        self._objects: dict[str, Manifest] = {}
        self._by_owner: dict[str, set[str]] = {}
        self._by_name: dict[tuple[str, str], set[str]] = {}
        self._dead: dict[str, tuple[float, float]] = {}
        """UIDs that are gone, with the version that it takes to be believed again, and until when; the oldest first."""

    def put(self, obj: Manifest) -> None:
        uid = obj["metadata"]["uid"]
        known = self._objects.get(uid)
        if _version(obj) <= (_version(known) if known is not None else self._dead.get(uid, (-1,))[0]):
            return
        self._dead.pop(uid, None)
        if known is not None:
            self._unindex(uid, known)
        self._objects[uid] = obj
        self._by_owner.setdefault(owner_uid(obj), set()).add(uid)
        self._by_name.setdefault(_name(obj), set()).add(uid)
        self._listener(self.kind.resource, obj)

    def remove(self, uid: str) -> None:
        """Forgets an object that is known to be deleted, whatever events of it are still to come."""
        self._forget(uid, math.inf)

    def drop(self, uid: str) -> None:
        """Forgets an object that watch or list no longer show: it was deleted, or somebody took away the
        label it is selected by, and a newer version of it may come back."""
        if uid in self._objects:
            self._forget(uid, _version(self._objects[uid]))

    def _forget(self, uid: str, version: float) -> None:
        now = monotonic()
        self._dead.pop(uid, None)
        self._dead[uid] = (version, now + _DEAD_SECONDS)
        while len(self._dead) > _DEAD_LIMIT or next(iter(self._dead.values()))[1] <= now:
            self._dead.pop(next(iter(self._dead)))
        obj = self._objects.pop(uid, None)
        if obj is not None:
            self._unindex(uid, obj)
            self._listener(self.kind.resource, obj)

    def _unindex(self, uid: str, obj: Manifest) -> None:
        _discard(self._by_owner, owner_uid(obj), uid)
        _discard(self._by_name, _name(obj), uid)

    def get(self, uid: str) -> Manifest | None:
        return self._objects.get(uid)

    def named(self, namespace: str, name: str) -> Manifest | None:
        """The newest object of that name."""
        candidates = [self._objects[uid] for uid in self._by_name.get((namespace, name), ())]
        return max(candidates, key=_version, default=None)

    def owned_by(self, uid: str) -> list[Manifest]:
        return [self._objects[child] for child in sorted(self._by_owner.get(uid, ()))]

    def all(self) -> list[Manifest]:
        return list(self._objects.values())

    def replace(self, namespaces: Iterable[str] | None, before: dict[str, int], listed: Sequence[Manifest]) -> int:
        """Compares with a list that was asked for when the store held `before` (`versions()`). Drops what
        the list does not name and no event has touched since; returns how many."""
        present = {obj["metadata"]["uid"] for obj in listed}
        scope = None if namespaces is None else set(namespaces)
        vanished = [
            uid
            for uid, version in before.items()
            if uid not in present
            and uid in self._objects
            and _version(self._objects[uid]) == version
            and (scope is None or self._objects[uid]["metadata"].get("namespace") in scope)
        ]
        for uid in vanished:
            self.drop(uid)
        for obj in listed:
            self.put(obj)
        return len(vanished)

    def versions(self) -> dict[str, int]:
        return {uid: _version(obj) for uid, obj in self._objects.items()}


class Caches:
    """The stores of all watched kinds."""

    def __init__(self, listener: Listener, namespaces: Sequence[str] = ()) -> None:
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._listener = listener
        self._stores = {kind.resource: Store(kind, self._changed) for kind in KINDS}
        self._ghosts: dict[str, dict[str, Manifest]] = {}
        self._stale: set[Resource] = set()
        self._wake = asyncio.Event()
        self._began = monotonic()
        self._listed: dict[Resource, float] = {}
        self._trouble: dict[Resource, str] = {}

    def __getitem__(self, resource: Resource) -> Store:
        return self._stores[resource]

    def handle(self, resource: Resource, event_type: str | None, obj: Manifest) -> None:
        """Takes one watch event. `event_type` None is kopf's mark of an object from a list."""
        store = self._stores[resource]
        if event_type == "DELETED":
            store.put(obj)
            store.drop(obj["metadata"]["uid"])
            return
        store.put(obj)

    def note_list(self, kind: str) -> None:
        """A watch of that kind begins anew, and says nothing of what vanished before."""
        self._stale |= {resource for resource in self._stores if resource.kind == kind}
        self._wake.set()

    def ghosts(self, job_uid: str) -> list[Manifest]:
        """The job's pods that are gone, as they were last seen."""
        return list(self._ghosts.get(job_uid, {}).values())

    def forget_job(self, job_uid: str) -> None:
        self._ghosts.pop(job_uid, None)

    async def prime(self, api: KubeClient) -> None:
        """Fills every store before anything is decided. Raises `ApiError` for what waiting does not mend,
        and for what it has not mended within `PRIME_SECONDS`."""
        deadline = asyncio.get_running_loop().time() + PRIME_SECONDS
        for kind in KINDS:
            while True:
                try:
                    await self._verify(api, kind)
                    break
                except ApiError as error:
                    if not error.may_pass or asyncio.get_running_loop().time() > deadline:
                        raise
                    logger.info("Listing %s failed, trying again: %s", kind.resource.plural, error)
                    await asyncio.sleep(1.0)

    def blindness(self) -> str:
        """Which kind was not listed for too long, and why; empty if none."""
        now = monotonic()
        for kind in KINDS:
            ago = now - self._listed.get(kind.resource, self._began)
            if ago > BLIND_SECONDS or kind.resource not in self._listed:
                trouble = self._trouble.get(kind.resource, "no answer yet")
                return f"{kind.resource.plural} were last listed {ago:.0f} s ago: {trouble}"
        return ""

    async def keep_verified(self, api: KubeClient) -> None:
        """Compares stores with lists for ever: after a watch's list at once, everything every minute, and what failed
        after a pause that grows."""
        failures = 0
        while True:
            kinds: Iterable[Kind]
            pause = min(_FAILED_LIMIT_SECONDS, _FAILED_BASE_SECONDS * 2 ** min(failures - 1, 8))
            try:
                async with asyncio.timeout(pause if failures else VERIFY_SECONDS):
                    await self._wake.wait()
                await asyncio.sleep(RELIST_DEBOUNCE_SECONDS)
                kinds = [kind for kind in KINDS if kind.resource in self._stale]
            except TimeoutError:
                kinds = KINDS
            self._wake.clear()
            self._stale.clear()
            failed = False
            for kind in kinds:
                try:
                    await self._verify(api, kind)
                except ApiError as error:
                    failed = True
                    logger.warning("Listing %s failed, trying again: %s", kind.resource.plural, error)
            failures = failures + 1 if failed else 0

    async def _verify(self, api: KubeClient, kind: Kind) -> None:
        store = self._stores[kind.resource]
        for namespace in self._namespaces:
            before = store.versions()
            try:
                answer = await api.list(kind.resource, namespace, labels=kind.labels, fields=kind.fields)
            except ApiError as error:
                self._trouble[kind.resource] = str(error)
                raise
            for item in answer["items"]:
                item.setdefault("kind", kind.resource.kind)
                item.setdefault("apiVersion", kind.resource.api_version)
            dropped = store.replace(None if namespace is None else [namespace], before, answer["items"])
            if dropped:
                logger.info("%d %s had vanished unseen", dropped, kind.resource.plural)
        self._listed[kind.resource] = monotonic()

    def _changed(self, resource: Resource, obj: Manifest) -> None:
        uid = obj["metadata"]["uid"]
        if resource is PODS and self._stores[PODS].get(uid) is None:
            self._remember_ghost(obj)
        self._listener(resource, obj)

    def _remember_ghost(self, pod: Manifest) -> None:
        if self._stores[JOBS].get(owner_uid(pod)) is None:
            return
        ghosts = self._ghosts.setdefault(owner_uid(pod), {})
        ghosts[pod["metadata"]["uid"]] = pod
        while len(ghosts) > _GHOSTS_PER_JOB:
            ghosts.pop(next(iter(ghosts)))


def owner_uid(obj: Manifest) -> str:
    """The UID of the job that an object belongs to, or of the pod that an event is about."""
    if "involvedObject" in obj:
        return obj["involvedObject"].get("uid", "")
    return (obj["metadata"].get("labels") or {}).get(JOB_UID_LABEL, "")


def _version(obj: Manifest) -> int:
    return int(obj["metadata"]["resourceVersion"])


def _name(obj: Manifest) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _discard(index: dict[Any, set[str]], key: Any, uid: str) -> None:
    members = index.get(key)
    if members is not None:
        members.discard(uid)
        if not members:
            del index[key]
