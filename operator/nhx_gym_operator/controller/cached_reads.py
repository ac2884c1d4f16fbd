"""GETs of single objects whose answers are held for a few seconds."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from .kube import ApiError, KubeClient, Resource

HOLD_SECONDS = 4.0
_HELD_LIMIT = 1024


class CachedReads:
    """An answer, also "not found" and "forbidden", is given again for `HOLD_SECONDS`."""

    def __init__(self, api: KubeClient, clock: Callable[[], float] = monotonic) -> None:
        self._api = api
        self._clock = clock
        self._held: dict[tuple[Resource, str | None, str], tuple[float, dict[str, Any] | ApiError]] = {}

    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        key = (resource, namespace, name)
        until, answer = self._held.get(key, (0.0, None))
        if answer is None or self._clock() >= until:
            answer = await self._ask(resource, namespace, name)
            self._hold(key, answer)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def _ask(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any] | ApiError:
        try:
            return await self._api.get(resource, namespace, name)
        except ApiError as error:
            if error.not_found or error.forbidden:
                return error
            raise

    def _hold(self, key: tuple[Resource, str | None, str], answer: dict[str, Any] | ApiError) -> None:
        now = self._clock()
        if len(self._held) >= _HELD_LIMIT:
            self._held = {held: entry for held, entry in self._held.items() if entry[0] > now}
        self._held[key] = (now + HOLD_SECONDS, answer)
