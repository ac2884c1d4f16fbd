"""Every rollout that was recorded, on disk before it counts.

One JSON object a line: `{"crc32": "<hex>", "record": {…}}`, the checksum over the record's bytes as they
stand there. The first record binds the file to its job and dataset. A line that a kill cut short is
dropped when the journal is opened; damage anywhere else is an error, since it was not a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nhx_gym_operator.api.wire import FailureClass

from .rollouts import Failure, RolloutKey

_PREFIX = b'{"crc32":"'
_MIDDLE = b'","record":'
_PAYLOAD_AT = len(_PREFIX) + 8 + len(_MIDDLE)
_VERSION = 1


class JournalError(RuntimeError):
    """A journal that cannot be continued: another job's, another dataset's, or damaged."""


@dataclass(frozen=True)
class JournalHeader:
    """What a journal is about. Two runs may share one only if all of this is equal."""

    uid: str
    dataset_digest: str
    num_repeats: int


@dataclass
class Journal:
    """The recorded rollouts of one job, over all its attempts.

    `results` holds Gym's whole result of each rollout with a reward, `failures` the last failure of each
    other. A result stays: what is delivered a second time, or fails later, changes nothing.
    """

    path: Path
    header: JournalHeader
    results: dict[RolloutKey, dict[str, Any]] = field(default_factory=dict)
    failures: dict[RolloutKey, Failure] = field(default_factory=dict)
    _file: BinaryIO | None = None
    _pending: list[tuple[bytes, asyncio.Future[None]]] = field(default_factory=list)
    _writer: asyncio.Task[None] | None = None

    @classmethod
    def open(cls, path: Path, header: JournalHeader) -> Journal:
        """Read what is there and make ready to append. Raises `JournalError`, `OSError`."""
        journal = cls(path, header)
        path.parent.mkdir(parents=True, exist_ok=True)
        size = journal._read() if path.exists() else 0
        file = path.open("ab")
        file.truncate(size)
        journal._file = file
        if size == 0:
            first = {"kind": "journal", "version": _VERSION, **vars(header)}
            journal._write([_line(first)])
        return journal

    async def add_result(self, key: RolloutKey, task_id: str, result: dict[str, Any]) -> bool:
        """Record a rollout that has a reward. False if it was recorded before. Returns when it is on disk."""
        if key in self.results:
            return False
        self.results[key] = result
        self.failures.pop(key, None)
        await self._append({"kind": "result", **key._asdict(), "task_id": task_id, "result": result})
        return True

    async def add_failure(self, key: RolloutKey, task_id: str, failure: Failure) -> bool:
        """Record that a rollout has no reward. False if it has one."""
        if key in self.results:
            return False
        self.failures[key] = failure
        await self._append({"kind": "failure", **key._asdict(), "task_id": task_id, **vars(failure)})
        return True

    async def close(self) -> None:
        """Wait for what is being written."""
        if self._writer is not None:
            await self._writer
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _append(self, record: dict[str, Any]) -> None:
        done = asyncio.get_running_loop().create_future()
        self._pending.append((_line(record), done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_pending())
        await asyncio.shield(done)

    async def _write_pending(self) -> None:
        """One write and one sync for all that came while the last sync ran."""
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                await asyncio.to_thread(self._write, [line for line, _ in batch])
            except OSError as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(JournalError(f"cannot write {self.path}: {error}"))
                continue
            for _, done in batch:
                if not done.done():
                    done.set_result(None)

    def _write(self, lines: list[bytes]) -> None:
        if self._file is None:
            raise OSError("the journal is closed")
        self._file.write(b"".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Take in the records; returns the size of the intact part."""
        size = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = _record(line)
                if record is None:
                    if line.endswith(b"\n") or file.read(1):
                        raise JournalError(f"{self.path}:{number} is damaged (its checksum does not match)")
                    break
                self._take(number, record)
                size += len(line)
        return size

    def _take(self, number: int, record: dict[str, Any]) -> None:
        kind = record.pop("kind")
        if (number == 1) != (kind == "journal"):
            raise JournalError(f"{self.path}:{number} is not a journal of this program")
        if kind == "journal":
            self._check(record)
            return
        key = RolloutKey(record["task"], record["rollout"])
        if kind == "result":
            self.results.setdefault(key, record["result"])
            self.failures.pop(key, None)
        elif key not in self.results:
            self.failures[key] = Failure(FailureClass(record["failure_class"]), record["message"])

    def _check(self, found: dict[str, Any]) -> None:
        if found.pop("version") != _VERSION:
            raise JournalError(f"{self.path} was written by another version of this program")
        for name, expected in vars(self.header).items():
            if found.get(name) != expected:
                raise JournalError(
                    f"{self.path} belongs to another evaluation: its {name} is {found.get(name)!r},"
                    f" this job's is {expected!r}; give the job a results volume of its own"
                )


def _line(record: dict[str, Any]) -> bytes:
    payload = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    return b"%s%08x%s%s}\n" % (_PREFIX, zlib.crc32(payload), _MIDDLE, payload)


def _record(line: bytes) -> dict[str, Any] | None:
    """The record in a line, or None if the line is not as it was written."""
    payload = line[_PAYLOAD_AT:-2]
    with contextlib.suppress(ValueError, KeyError):
        if line.endswith(b"}\n") and int(line[len(_PREFIX) : len(_PREFIX) + 8], 16) == zlib.crc32(payload):
            record = json.loads(payload)
            return record if isinstance(record, dict) else None
    return None
