"""Writing statuses where the definition in the cluster is of another release and refuses a part of them.

What only people read is left out then, and the rest is written. Without what decisions are made from there is no
status: the job waits, in growing pauses, until the definition fits. Either way it is told: event, log and metric.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ..api.conditions import StatusReason
from . import events, metrics
from .act import Actor
from .clock import format_time
from .kube import ApiError, KubeClient

Manifest = dict[str, Any]

DISPENSABLE = frozenset(
    {
        "aggregates",
        "aggregatesDropped",
        "coverage",
        "egress",
        "hosts",
        "model",
        "placementReason",
        "progress",
        "ran",
        "results",
        "reward",
        "usage",
    }
)
"""Fields of a job's status that no decision is made from."""
_TOP = re.compile(r"status\.(\w+)")

logger = logging.getLogger(__name__)


class StatusWriter:
    """Remembers, for as long as the operator runs, what was refused of which object."""

    def __init__(self, actor: Actor, api: KubeClient, now: Callable[[], datetime]) -> None:
        self._actor = actor
        self._api = api
        self._now = now
        self._refused: dict[str, frozenset[str]] = {}

    async def write(self, raw: Manifest, status: Manifest) -> bool:
        """False if nothing differs. Raises `ApiError`; an `invalid` one if the status can't do without what was
        refused."""
        uid = raw["metadata"]["uid"]
        while True:
            without = self._refused.get(uid, frozenset())
            try:
                return await self._actor.write_status(raw, status, without)
            except ApiError as error:
                if not error.invalid:
                    raise
                refused = frozenset(found[1] for field in error.fields if (found := _TOP.match(field)))
                spared = bool(refused) and refused <= DISPENSABLE - without
                await self._tell(raw, error, refused if spared else frozenset())
                if not spared:
                    raise
                self._refused[uid] = without | refused

    def forget(self, uid: str) -> None:
        self._refused.pop(uid, None)

    async def _tell(self, raw: Manifest, error: ApiError, left_out: frozenset[str]) -> None:
        metadata = raw["metadata"]
        what = f"left out: status.{', status.'.join(sorted(left_out))}" if left_out else "nothing of it is written"
        words = f"{error.message}; {what}. Apply the CRDs of the operator's release (its folder crds/)"
        logger.warning("The status of %s %s/%s: %s", raw["kind"], metadata["namespace"], metadata["name"], words)
        metrics.OPERATOR.refused_statuses.inc()
        told = events.event(
            raw,
            change=f"{StatusReason.STATUS_REFUSED}/{','.join(sorted(error.fields))}",
            reason=StatusReason.STATUS_REFUSED,
            message=words,
            severity="Warning",
            moment=format_time(self._now()),
        )
        await events.publish(self._api, [told])
