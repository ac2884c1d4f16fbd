"""Ctrl-C and SIGTERM held back for a moment, so that nobody is left with half of something."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held() -> Iterator[Callable[[], None]]:
    """While the block runs, Ctrl-C and SIGTERM wait for a call of its value, which raises KeyboardInterrupt: where it
    is known what was done so far. One that comes after the last call is dropped, since all was done by then.

    Python interrupts nothing in other threads than the main one, so nothing is held there. Signals that the program
    ignores stay ignored.
    """
    came: list[int] = []

    def note(number: int, _: object) -> None:
        if not came:
            print("interrupted; waiting for the cluster's answer, so that nothing is left half made", file=sys.stderr)
        came.append(number)

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    for number in taken:
        signal.signal(number, note)
    try:
        yield check
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
