"""One place through which everything this container prints flows.

Gym's servers inherit file descriptors 1 and 2 and write past Python's own streams. So the descriptors
themselves become a pipe: each line is passed on to the pod's log with secrets masked, and the last
ones are kept, because a server that dies at start says why there and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..api.wire.endpoints import HOST_LOG_LIMIT_BYTES
from ..in_pods.masking import Mask, by_lines

TAIL_LINES = 80
LINE_LIMIT = 500
"""Characters of a line that the tail keeps."""
_LAST_LINES_S = 2.0
"""A process that outlived the container's end keeps the pipe open; nothing waits for it."""
_MAX_PENDING_BYTES = 1 << 20
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|PRIVATE", re.IGNORECASE)


def secrets_in(environment: dict[str, str], names: Iterable[str] = ()) -> list[str]:
    """Values that must not be printed: those of `names`, and of variables whose name says secret."""
    named = set(names)
    return [value for name, value in environment.items() if name in named or _SECRET_NAME.search(name)]


class Kept:
    """A file with the output as it is passed on. Above `limit_bytes` its older half is given up."""

    def __init__(self, path: Path, limit_bytes: int = HOST_LOG_LIMIT_BYTES - 4096) -> None:
        self._path, self._older = path, path.with_suffix(".older")
        self._half = limit_bytes // 2
        self._file = path.open("wb")
        self._lost = 0

    def write(self, line: bytes) -> None:
        self._file.write(line)
        if self._file.tell() > self._half:
            self._lost += self._older.stat().st_size if self._older.exists() else 0
            self._file.close()
            self._path.replace(self._older)
            self._file = self._path.open("wb")

    def chunks(self) -> Iterator[bytes]:
        """All that is kept, oldest first."""
        self._file.flush()
        if self._lost:
            yield f"gym-host: the first {self._lost} bytes are left out\n".encode()
        for path in (self._older, self._path):
            if path.exists():
                with path.open("rb") as file:
                    while chunk := file.read(1 << 20):
                        yield chunk


class Output:
    """The container's output: masked, passed on, its tail kept, and all of it in `kept`."""

    def __init__(self, secrets: Iterable[str], kept: Kept | None = None) -> None:
        self.kept = kept
        self._mask = Mask(by_lines(secrets))
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def mask(self, text: str) -> str:
        return self._mask.text(text)

    def tail(self) -> list[str]:
        """The last lines that were not blank, oldest first."""
        return list(self._tail)

    def install(self) -> None:
        """Take over descriptors 1 and 2 of this process and of all it will start."""
        self._log = os.dup(1)
        source, sink = os.pipe()
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(sink)
        self._thread = threading.Thread(target=self._pump, args=(source, self._log), name="output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let go of the descriptors and wait, for a moment, until all that was printed has been passed on."""
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        self._thread.join(_LAST_LINES_S)

    def _pump(self, source: int, log: int) -> None:
        pending = b""
        while chunk := os.read(source, 1 << 16):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._emit(log, line + b"\n")
            # A writer that never ends its line must not fill the memory.
            if len(pending) > _MAX_PENDING_BYTES:
                self._emit(log, pending + b"\n")
                pending = b""
        self._emit(log, pending)

    def _emit(self, log: int, line: bytes) -> None:
        masked = self._mask.data(line)
        if self.kept:
            # A full disk must not end the pod's own log.
            with contextlib.suppress(OSError):
                self.kept.write(masked)
        if text := masked.decode(errors="replace").strip():
            # Progress bars redraw one line with carriage returns; only the last state is of use.
            self._tail.append(text.rpartition("\r")[2][:LINE_LIMIT])
        try:
            while masked:
                masked = masked[os.write(log, masked) :]
        except OSError:
            # Nobody reads the pod's log any more; the tail still counts.
            pass
