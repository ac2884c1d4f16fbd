"""Keys of what has to be looked at, each at most once at a time.

Watches, timers and the progress poller put keys in; workers take them out. A key that arrives while it
is being worked on is handed out again afterwards; a key that failed comes back after a growing pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

BACKOFF_BASE_SECONDS = 0.2
BACKOFF_LIMIT_SECONDS = 60.0


class WorkQueue[Key: Hashable]:
    """De-duplicating queue with delays and exponential back-off per key. For one event loop."""

    def __init__(self, *, base: float = BACKOFF_BASE_SECONDS, limit: float = BACKOFF_LIMIT_SECONDS) -> None:
        self._base = base
        self._limit = limit
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    def add(self, key: Key) -> None:
        """Hands the key out as soon as possible."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Hands the key out after a pause. Only the earliest of several pauses counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, seconds)
        earlier = self._timers.get(key)
        if earlier is not None:
            if earlier.when() <= due:
                return
            earlier.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    def add_after_failure(self, key: Key, limit: float | None = None) -> float:
        """Hands the key out after a pause that doubles with each failure, up to `limit` or the queue's own; returns the
        pause."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(limit or self._limit, self._base * 2 ** min(failures, 32))
        self.add_after(key, pause)
        return pause

    def succeeded(self, key: Key) -> None:
        """Ends the key's back-off."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """Drops timers and back-off of a key whose object is gone."""
        self.succeeded(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def take(self) -> Key:
        """The next key. It must be given to `done` afterwards."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)
