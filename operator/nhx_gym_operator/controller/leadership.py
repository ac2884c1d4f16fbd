"""Which of several operators acts: the one that holds the Lease.

The holder renews it, and acts only while its last renewal is younger than a bound that is shorter than the Lease: it
has stopped by the time that another one may begin. How long ago a Lease changed is told by each process's own clock
since it saw the change, so that clocks that differ do no harm. As client-go's leader election does it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from . import clock
from .kube import LEASES, ApiError, KubeClient, find
from .settings import LeaseSettings, SettingsError

Manifest = dict[str, Any]

logger = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Somebody else may act by now, or soon."""


class Leadership:
    """One process's part. `identity` tells it from the others: a pod's name, which its next container may use again."""

    def __init__(
        self,
        api: KubeClient,
        settings: LeaseSettings,
        identity: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = clock.now,
    ) -> None:
        self._api = api
        self._settings = settings
        self._identity = identity
        self._monotonic = monotonic
        self._now = now
        self._until = -math.inf
        self._seen: tuple[str, str] | None = None
        self._seen_at = 0.0

    def holds(self) -> bool:
        """Whether this process may act now. Asked before each write."""
        return self._monotonic() < self._until

    async def acquire(self) -> None:
        """Returns once this process holds the Lease. Raises `SettingsError` if it has no right to."""
        while not await self._try():
            await asyncio.sleep(self._settings.retry_seconds)

    async def keep(self) -> None:
        """Renews for ever; raises `LeaseLost`."""
        while self.holds():
            await asyncio.sleep(self._settings.retry_seconds)
            await self._try()
        raise LeaseLost

    async def release(self) -> None:
        """Lets the next one begin at once. To be called when nothing acts any more."""
        if not self.holds():
            return
        self._until = -math.inf
        try:
            live = await self._find()
            if live is not None and _holder(live) == self._identity:
                await self._api.replace(self._lease(live, holder=""))
        except ApiError as error:
            logger.warning("The Lease could not be released, and will run out: %s", error)

    async def _try(self) -> bool:
        """Takes or renews the Lease. What it grants counts from before it was asked for."""
        began = self._monotonic()
        try:
            async with asyncio.timeout(self._settings.renew_deadline_seconds / 2):
                held = await self._write()
        except TimeoutError:
            logger.warning("The Lease was not answered for")
            return False
        except ApiError as error:
            if error.forbidden:
                raise SettingsError(self._without_right(error)) from error
            if not error.conflict and not error.already_exists:
                logger.warning("The Lease: %s", error)
                return False
            held = False
        self._until = began + self._settings.renew_deadline_seconds if held else -math.inf
        return held

    async def _write(self) -> bool:
        live = await self._find()
        if live is None:
            await self._api.create(self._lease(None, holder=self._identity))
            return True
        if self._is_anothers(live):
            return False
        await self._api.replace(self._lease(live, holder=self._identity))
        return True

    def _is_anothers(self, live: Manifest) -> bool:
        seen = (_holder(live), live["metadata"]["resourceVersion"])
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._monotonic()
        lasts = live["spec"].get("leaseDurationSeconds") or self._settings.duration_seconds
        return seen[0] not in ("", self._identity) and self._monotonic() < self._seen_at + lasts

    async def _find(self) -> Manifest | None:
        return await find(self._api, LEASES, self._settings.namespace, self._settings.name)

    def _lease(self, live: Manifest | None, *, holder: str) -> Manifest:
        """The Lease to write; over `live` only if that is still what is stored."""
        before = live["spec"] if live else {}
        moment = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        goes_on = live is not None and _holder(live) == holder
        metadata = {"name": self._settings.name, "namespace": self._settings.namespace}
        if live is not None:
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self._settings.duration_seconds,
                "acquireTime": before.get("acquireTime", moment) if goes_on else moment,
                "renewTime": moment,
                "leaseTransitions": before.get("leaseTransitions", 0) + int(bool(live and holder) and not goes_on),
            },
        }

    def _without_right(self, error: ApiError) -> str:
        where = f"{self._settings.namespace}/{self._settings.name}"
        return (
            f"Lease {where}: {error.message}; the operator's role needs get, create and update of "
            "leases.coordination.k8s.io there (the chart's rbac.create), or set leaderElection.enabled to false, with "
            "one replica"
        )


def _holder(lease: Manifest) -> str:
    return lease["spec"].get("holderIdentity") or ""
