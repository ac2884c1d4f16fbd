"""Runs what takes long side by side, ahead of the tests that look at it.

A scenario is a function that plays one story on the cluster and returns what was seen. Those that the collected tests
ask for start when the first test does, a few at a time; a test waits for its own. A scenario that fails fails every
test that asks for it, with its own traceback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from e2e.world import World

STARTING_AT_ONCE = 3
"""Gyms that start together slow each other down on two cores; more than three come near their startup timeout."""
IDLE_AT_ONCE = 8
LONGEST_SECONDS = 1800.0
"""All scenarios together, at most three Gyms at once on two cores."""

type Scenario = Callable[[World], Any]


@dataclass(frozen=True)
class _Entry:
    play: Scenario
    idle: bool
    nightly: bool = False


_registered: dict[str, _Entry] = {}


def scenario(function: Scenario) -> Scenario:
    """Makes a function known by its name. Defined first, started first."""
    _registered[function.__name__] = _Entry(function, idle=False)
    return function


def idle_scenario(function: Scenario) -> Scenario:
    """One that runs no Gym, or hardly, and so need not wait for those that do."""
    _registered[function.__name__] = _Entry(function, idle=True)
    return function


def nightly(function: Scenario) -> Scenario:
    """One that is not played for every change, and so are the tests that ask for it."""
    _registered[function.__name__] = replace(_registered[function.__name__], nightly=True)
    return function


def names() -> list[str]:
    return list(_registered)


def nightly_names() -> set[str]:
    return {name for name, entry in _registered.items() if entry.nightly}


class Stage:
    def __init__(self, world: World, asked_for: Iterable[str]):
        wanted = set(asked_for)
        self.world = world
        self._pools = {
            False: ThreadPoolExecutor(STARTING_AT_ONCE, thread_name_prefix="scenario"),
            True: ThreadPoolExecutor(IDLE_AT_ONCE, thread_name_prefix="idle-scenario"),
        }
        self._results: dict[str, Future[Any]] = {}
        self.seconds: dict[str, float] = {}
        for name, entry in _registered.items():
            if name in wanted:
                self._results[name] = self._pools[entry.idle].submit(self._play, name, entry.play, world)

    def result(self, name: str) -> Any:
        return self._results[name].result(timeout=LONGEST_SECONDS)

    def outcome(self, name: str) -> Any:
        """The result of a scenario that came to a good end, None otherwise."""
        future = self._results[name]
        return future.result() if future.done() and not future.cancelled() and not future.exception() else None

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)

    def _play(self, name: str, play: Scenario, world: World) -> Any:
        start = time.monotonic()
        try:
            return play(world)
        finally:
            self.seconds[name] = time.monotonic() - start
