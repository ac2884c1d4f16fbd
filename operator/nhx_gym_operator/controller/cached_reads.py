"""GETs of single objects whose answers are held for a few seconds.

What is held is small, and not held for longer: ConfigMaps of a MiB are read as often as they are needed, and then
forgotten, however many of them somebody makes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from .kube import ApiError, KubeClient, Resource

HOLD_SECONDS = 4.0
MAX_HELD_BYTES = 16 * 1024
"""Of the values that an object holds as text, as ConfigMaps do."""


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
        # All are held for the same time: the first in are the first that it is over for.
        while self._held and next(iter(self._held.values()))[0] <= now:
            self._held.pop(next(iter(self._held)))
        self._held.pop(key, None)
        if isinstance(answer, ApiError) or _text_bytes(answer) <= MAX_HELD_BYTES:
            self._held[key] = (now + HOLD_SECONDS, answer)


def _text_bytes(answer: dict[str, Any]) -> int:
    texts = [text for field in ("data", "binaryData") for text in (answer.get(field) or {}).values()]
    return sum(len(text) for text in texts)
