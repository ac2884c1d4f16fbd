"""act: perform a decision's actions so that performing them twice does no more than once.

Names are deterministic, so that an object which is there already is as good as one just made, if it is
ours. Every answer goes into the caches: the next look sees it without waiting for the watch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from time import monotonic
from typing import Any

from ..api.conditions import PodReason
from ..api.constants import JOB_UID_LABEL
from .caches import Caches
from .differences import merge_patch
from .kube import JOBS, PODS, SECRETS, SERVICES, ApiError, KubeClient, find, resource_of
from .observation import Action, Apply, Create, CreateTogether, DeleteJob, DeletePod

Manifest = dict[str, Any]

_RETRIED = {0, 408, 409, 429}
_RANGE_IS_FULL = "range is full"
"""No address is left for a Service (`ErrFull` of k8s.io/kubernetes/pkg/registry/core/service/ipallocator). It comes as
an internal error, 500."""
_NO_VOLUME_TYPE = "must specify a volume type"
"""What is left of a volume of a kind that the API server does not know or has switched off."""
REAPPLY_SECONDS = 10.0
"""An object that somebody changes back at once is not fought over more often than this."""

logger = logging.getLogger(__name__)


class ActionRefused(Exception):
    """The API server will not have an object, now or ever; asking again at once is of no use."""

    def __init__(self, reason: PodReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Actor:
    """Performs actions against one API server. Raises `ActionRefused`, or `ApiError` for what a retry may mend."""

    def __init__(self, api: KubeClient, caches: Caches) -> None:
        self._api = api
        self._caches = caches
        # Pairs of pods are asked for one after the other in a namespace: of two jobs that fit its quota
        # one by one, neither then holds a pod that the other one lacks.
        self._pod_locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._applied: dict[str, float] = {}

    async def perform(self, action: Action) -> float | None:
        """None once it is done; else the seconds after which it may be."""
        match action:
            case Apply(manifest):
                return await self._apply(manifest)
            case Create(manifest):
                await self._create(manifest)
            case CreateTogether(manifests):
                async with self._pod_locks[manifests[0]["metadata"]["namespace"]]:
                    await self._create_together(manifests)
            case DeletePod():
                await self._delete(action)
            case DeleteJob():
                await self._delete_job(action)
        return None

    async def write_status(self, raw: Manifest, status: Manifest, without: frozenset[str] = frozenset()) -> bool:
        """Writes what differs of a job's or a FileSet's status, but for the fields in `without`; False if nothing does.
        The patch holds the resource version that the decision was made from, so that one from old news becomes a
        conflict."""
        differs = merge_patch(raw.get("status") or {}, status)
        patch = {field: value for field, value in differs.items() if field not in without}
        if not patch:
            return False
        metadata = raw["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": patch}
        answer = await self._api.patch_status(resource_of(raw), metadata["namespace"], metadata["name"], body)
        self._remember(answer)
        return True

    async def _apply(self, manifest: Manifest) -> float | None:
        live = await self._existing(manifest)
        if live is not None:
            self._check_ours(live, manifest)
            left = self._applied.get(live["metadata"]["uid"], -math.inf) + REAPPLY_SECONDS - monotonic()
            if left > 0:
                return left
        try:
            made = await self._api.apply(manifest)
            self._note_applied(made["metadata"]["uid"])
            self._remember(made)
        except ApiError as error:
            raise _translated(error, manifest) from error
        return None

    def _note_applied(self, uid: str) -> None:
        now = monotonic()
        self._applied = {known: at for known, at in self._applied.items() if now - at < REAPPLY_SECONDS}
        self._applied[uid] = now

    async def _create(self, manifest: Manifest) -> Manifest | None:
        """The object made or found; None for a Secret that was there, which may not be read: nobody but
        the operator knows its name beforehand."""
        try:
            made = await self._api.create(manifest)
        except ApiError as error:
            if not error.already_exists:
                raise _translated(error, manifest) from error
            if resource_of(manifest) is SECRETS:
                return None
            made = await self._existing(manifest)
            if made is None:
                raise
            self._check_ours(made, manifest)
        self._remember(made)
        return made

    async def _create_together(self, manifests: tuple[Manifest, ...]) -> None:
        made: list[Manifest] = []
        try:
            for manifest in manifests:
                pod = await self._create(manifest)
                if pod is not None and "deletionTimestamp" in pod["metadata"]:
                    raise ActionRefused(PodReason.POD_REFUSED, f"{_named(manifest)} is still being deleted")
                if pod is not None:
                    made.append(pod)
        except (ActionRefused, ApiError):
            for pod in made:
                await self._withdraw(pod)
            raise

    async def _withdraw(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        unbound = not pod["spec"].get("nodeName")
        try:
            await self._api.delete(
                PODS, metadata["namespace"], metadata["name"], uid=metadata["uid"], grace_seconds=0 if unbound else None
            )
        except ApiError as error:
            if not error.not_found:
                logger.warning("Withdrawing pod %s/%s failed: %s", metadata["namespace"], metadata["name"], error)
                return
        if unbound:
            self._caches[PODS].remove(metadata["uid"])

    async def _delete(self, action: DeletePod) -> None:
        try:
            await self._api.delete(PODS, action.namespace, action.name, uid=action.uid)
        except ApiError as error:
            # Gone, or another pod by now: either way that one is not there any more.
            if error.not_found or error.conflict:
                self._caches[PODS].remove(action.uid)
                return
            raise

    async def _delete_job(self, action: DeleteJob) -> None:
        version = action.resource_version
        try:
            await self._api.delete(JOBS, action.namespace, action.name, uid=action.uid, resource_version=version)
        except ApiError as error:
            if not error.not_found:
                raise

    async def _existing(self, manifest: Manifest) -> Manifest | None:
        metadata = manifest["metadata"]
        return await find(self._api, resource_of(manifest), metadata["namespace"], metadata["name"])

    def _check_ours(self, live: Manifest, manifest: Manifest) -> None:
        if not _same_owner(live["metadata"], manifest["metadata"]):
            raise ActionRefused(
                PodReason.CHILD_NOT_OURS,
                f"{_named(manifest)} exists and does not belong to this job; remove it or give the job another name",
            )

    def _remember(self, obj: Manifest) -> None:
        resource = resource_of(obj)
        if resource is not SECRETS:
            self._caches[resource].put(obj)


def _same_owner(live: Manifest, wanted: Manifest) -> bool:
    """By ownerReference; an object that is to outlive its job has none, and the job's UID on a label instead."""
    if not wanted.get("ownerReferences"):
        return (live.get("labels") or {}).get(JOB_UID_LABEL) == wanted["labels"][JOB_UID_LABEL]
    return wanted["ownerReferences"][0]["uid"] in [owner["uid"] for owner in live.get("ownerReferences", ())]


def _translated(error: ApiError, manifest: Manifest) -> ActionRefused | ApiError:
    """Client errors other than conflicts and throttling are the server's last word for now, and so is that it has no
    address left. One of a namespace that ends is no news for a job that ends with it."""
    has_no_address = manifest["kind"] == SERVICES.kind and _RANGE_IS_FULL in error.message
    if error.status in _RETRIED or (error.status >= 500 and not has_no_address) or error.namespace_ends:
        return error
    message = f"{_named(manifest)} was refused: {error.message}"
    if _NO_VOLUME_TYPE in error.message and _has_image_volume(manifest):
        message += (
            ". This cluster has no image volumes (they take Kubernetes 1.33 or newer): give the FileSet another "
            "source than image"
        )
    return ActionRefused(PodReason.POD_REFUSED, message)


def _has_image_volume(manifest: Manifest) -> bool:
    return any("image" in volume for volume in manifest.get("spec", {}).get("volumes", ()))


def _named(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']!r}"
