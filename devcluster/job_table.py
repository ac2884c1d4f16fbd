"""What `kubectl get agentevaljobs --watch` prints, and a job's aggregates, as lines for a terminal."""

import queue
import subprocess
import threading
import time
from collections.abc import Callable

from . import report

HEARTBEAT_SECONDS = 30
_RESTART_SECONDS = 1.0
ENDED = ("Succeeded", "Failed", "Cancelled")
_STATISTICS = ("mean", "min", "max", "stdDev")


class JobTable:
    """Takes kubectl's lines one by one. One whose age alone is new is no news; a new watch repeats all."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._rows: dict[str, list[str]] = {}

    def is_news(self, line: str) -> bool:
        words = line.split()
        if not words:
            return False
        name, row = words[0], words[:-1]
        if self._rows.get(name) == row:
            return False
        self._rows[name] = row
        return True

    def phase(self, name: str) -> str:
        row = self._rows.get(name, [])
        return row[1] if len(row) > 1 else ""

    @property
    def ended(self) -> bool:
        return all(self.phase(name) in ENDED for name in self._names)

    @property
    def summary(self) -> str:
        return ", ".join(f"{name} {self.phase(name) or 'not seen yet'}" for name in self._names)


class Watch:
    """The lines of a kubectl that watches. It ends by itself every now and then, and is then started again."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._pump, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._process:
            self._process.kill()

    def _pump(self) -> None:
        while not self._stopped.is_set():
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=self._environment,
            )
            if self._stopped.is_set():
                self._process.kill()
            for line in self._process.stdout:
                self.lines.put(line.rstrip())
            self._process.wait()
            self._stopped.wait(_RESTART_SECONDS)


def follow(watch: Watch, table: JobTable, seconds: float, missing: Callable[[], list[str]]) -> str:
    """Prints each row that is news until all jobs have ended. Returns what went wrong, or an empty string.

    `missing` names jobs that no longer exist, which a watch's rows do not tell. It is asked when nothing is new.
    """
    began = time.monotonic()
    try:
        while not table.ended:
            passed = time.monotonic() - began
            if passed >= seconds:
                return f"not finished within {seconds:.0f} s: {table.summary}"
            try:
                line = watch.lines.get(timeout=min(HEARTBEAT_SECONDS, seconds - passed))
            except queue.Empty:
                report.say(f"... {time.monotonic() - began:.0f} s of at most {seconds:.0f}: {table.summary}")
                if gone := missing():
                    return f"somebody deleted {' and '.join(gone)}"
                continue
            if table.is_news(line):
                report.say(line)
        return ""
    finally:
        watch.stop()


def aggregate_lines(aggregates: list[dict]) -> list[str]:
    header = ["NAME", "UNIT", "VALUE", "COUNT", *(name.upper() for name in _STATISTICS)]
    return columns([header, *(_aggregate_row(aggregate) for aggregate in aggregates)])


def _aggregate_row(aggregate: dict) -> list[str]:
    name, unit, count = (str(aggregate.get(field) or "") for field in ("name", "unit", "count"))
    return [
        name,
        unit,
        _number(aggregate.get("value")),
        count,
        *(_number(aggregate.get(field)) for field in _STATISTICS),
    ]


def columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _number(value: float | None) -> str:
    # The API server stores 80.0 as 80.
    return "" if value is None else str(round(float(value), 4))
