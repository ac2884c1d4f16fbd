"""Every rollout that was recorded, on disk before it counts.

One JSON object a line: `{"crc32": "<hex>", "record": {…}}`, the checksum over the record's bytes as they
stand there. The first record binds the file to its job and dataset. A line that a kill cut short is
dropped when the journal is opened; damage anywhere else is an error, since it was not a kill.

Results stay on disk: of each one only its place and its reward are held, since 100,000 of them would not fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from ..api.wire.reports import FailureClass
from . import disk
from .metering import Counted
from .rollouts import Failure, RolloutKey

_PREFIX = b'{"crc32":"'
_MIDDLE = b'","record":'
_PAYLOAD_AT = len(_PREFIX) + 8 + len(_MIDDLE)
_VERSION = 2
_BEGINNING_SECONDS = 5.0
"""A journal without its first line is being begun by another job, or was cut short by a power cut: then it stays so."""
_ANEW = "apply the job again under another name, with a results volume of its own"


class JournalError(RuntimeError):
    """A journal that cannot be continued: another job's, another dataset's, or damaged."""


class ForeignJournal(JournalError):
    """A journal of another job. Nothing is ever reused between jobs."""


class JournalUnwritable(JournalError):
    """The journal's volume takes nothing more. Its cause is the `OSError`."""


@dataclass(frozen=True)
class JournalHeader:
    """What a journal is about. Two runs may share one only if all of this is equal."""

    uid: str
    dataset_digest: str
    num_repeats: int


class _Place(NamedTuple):
    """Where a result's line lies in the file, and what it says of the reward."""

    offset: int
    size: int
    reward: float


class Results(Mapping[RolloutKey, dict[str, Any]]):
    """Gym's whole result of each rollout with a reward, read from the file whenever one is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[RolloutKey, _Place] = {}

    def __getitem__(self, key: RolloutKey) -> dict[str, Any]:
        place = self._places[key]
        with self._path.open("rb") as file:
            file.seek(place.offset)
            record = _record(file.read(place.size))
        if record is None:
            raise JournalError(f"{self._path} changed under this job at byte {place.offset}")
        return record["result"]

    def __iter__(self) -> Iterator[RolloutKey]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def reward(self, key: RolloutKey) -> float | None:
        """The reward of a rollout; None if it has no result."""
        place = self._places.get(key)
        return place.reward if place else None

    def size(self, key: RolloutKey) -> int:
        """Bytes of a rollout's record, 0 without one: what it takes to hold its result."""
        place = self._places.get(key)
        return place.size if place else 0

    def put(self, key: RolloutKey, place: _Place) -> None:
        self._places.setdefault(key, place)


@dataclass
class _Pending:
    line: bytes
    done: asyncio.Future[None]
    key: RolloutKey | None = None
    """Of a result."""
    reward: float = 0.0


@dataclass
class Journal:
    """The recorded rollouts of one job, over all its attempts.

    `results` has each rollout with a reward, `failures` the last failure of each other. A result stays: what is
    delivered a second time, or fails later, changes nothing. `usage` is what the job's models had counted, by name,
    when the last record was written; `measure` says what they would have, were this process lost now, once there is a
    gateway that counts.
    """

    path: Path
    header: JournalHeader
    results: Results = field(init=False)
    failures: dict[RolloutKey, Failure] = field(default_factory=dict)
    failed_tries: Counter[RolloutKey] = field(default_factory=Counter)
    """How often each of them was tried to its end, over all attempts."""
    usage: dict[str, Counted] = field(default_factory=dict)
    measure: Callable[[], Mapping[str, Counted]] | None = None
    environments: list[str] = field(default_factory=list)
    """Digests of the environments that were staged for this job, the latest last."""
    _file: FileIO | None = None
    _size: int = 0
    _taken: set[RolloutKey] = field(default_factory=set)
    """Results that are on disk or on their way there."""
    _noted: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`usage` as it stands in the last record."""
    _pending: list[_Pending] = field(default_factory=list)
    _writer: asyncio.Task[None] | None = None
    _broken: OSError | None = None
    """Why nothing is written any more."""

    def __post_init__(self) -> None:
        self.results = Results(self.path)

    @classmethod
    def open(cls, path: Path, header: JournalHeader) -> Journal:
        """Read what is there and make ready to append. Of two jobs that begin at once, the journal is one's alone; the
        other finds it there. Raises `JournalError`, `OSError`."""
        journal = cls(path, header)
        path.parent.mkdir(parents=True, exist_ok=True)
        first = _line({"kind": "journal", "version": _VERSION, **vars(header)})
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                disk.create_whole(path, first, scratch=path.with_name(f".{path.name}.{header.uid}"))
        journal._size = journal._read_begun()
        # Unbuffered: of a write that failed nothing may be left for later.
        file = path.open("ab", buffering=0)
        file.truncate(journal._size)
        journal._file = file
        if journal._size == 0:
            journal._write([first])
        return journal

    async def add_result(self, key: RolloutKey, task_id: str, result: dict[str, Any], reward: float) -> bool:
        """Record a rollout that has a reward. False if it was recorded before. Returns when it is on disk. Raises
        `JournalUnwritable`, as all that records does: from the first time on that anything could not be written."""
        if key in self._taken:
            return False
        self._has_result(key)
        record = {"kind": "result", **key._asdict(), "task_id": task_id, "reward": reward, "result": result}
        await self._append(record, key, reward)
        return True

    async def add_failure(self, key: RolloutKey, task_id: str, failure: Failure) -> bool:
        """Record that a rollout has no reward. False if it has one."""
        if key in self._taken:
            return False
        self._has_failed(key, failure)
        await self._append({"kind": "failure", **key._asdict(), "task_id": task_id, **vars(failure)})
        return True

    async def add_environment(self, digest: str) -> list[str]:
        """Record what this attempt's rollouts run in; returns what those of earlier attempts ran in, where it was
        something else."""
        others = [other for other in self.environments if other != digest]
        if self.environments[-1:] != [digest]:
            self.environments.append(digest)
            await self._append({"kind": "environment", "digest": digest})
        return others

    async def note_usage(self) -> None:
        """Record what the models have counted, unless the last record says the same."""
        if self._counted() != self._noted:
            await self._append({"kind": "usage"})

    async def settle(self) -> None:
        """Wait for what is being written."""
        if self._writer is not None:
            await self._writer

    async def close(self) -> None:
        """Note what was counted last, and wait for what is being written. What was recorded can still be read."""
        if self._file is not None:
            with contextlib.suppress(JournalUnwritable):
                await self.note_usage()
            await self.settle()
            self._file.close()
            self._file = None

    async def _append(self, record: dict[str, Any], key: RolloutKey | None = None, reward: float = 0.0) -> None:
        if self._broken is not None:
            raise self._unwritable()
        record["usage"] = self._noted = self._counted()
        done = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(_line(record), done, key, reward))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_pending())
        await asyncio.shield(done)

    def _counted(self) -> dict[str, dict[str, Any]]:
        counted = self.measure() if self.measure else self.usage
        shown = {name: usage.model_dump(mode="json", exclude_defaults=True) for name, usage in counted.items()}
        return {name: usage for name, usage in shown.items() if usage}

    async def _write_pending(self) -> None:
        """One write and one sync for all that came while the last sync ran."""
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                offset = await asyncio.to_thread(self._write, [each.line for each in batch])
            except OSError as error:
                # What failed may stand there in part, and a record behind it would be damage to the next attempt.
                self._broken = error
                for each in batch + self._pending:
                    if not each.done.done():
                        each.done.set_exception(self._unwritable())
                self._pending.clear()
                return
            for each in batch:
                if each.key is not None:
                    self.results.put(each.key, _Place(offset, len(each.line), each.reward))
                offset += len(each.line)
                if not each.done.done():
                    each.done.set_result(None)

    def _unwritable(self) -> JournalUnwritable:
        error = JournalUnwritable(f"cannot write {self.path}: {self._broken}")
        error.__cause__ = self._broken
        return error

    def _write(self, lines: list[bytes]) -> int:
        """Where the first of the lines begins in the file."""
        if self._file is None:
            raise OSError("the journal is closed")
        disk.write_synced(self._file.fileno(), lines)
        offset = self._size
        self._size += sum(map(len, lines))
        return offset

    def _read_begun(self) -> int:
        until = time.monotonic() + _BEGINNING_SECONDS
        while not (size := self._read()) and time.monotonic() < until:
            time.sleep(0.1)
        return size

    def _read(self) -> int:
        """Take in the records; returns the size of the intact part."""
        size = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = _record(line)
                if record is None:
                    if line.endswith(b"\n") or file.read(1):
                        raise JournalError(f"{self.path}:{number} is damaged (its checksum does not match); {_ANEW}")
                    break
                self._take(number, record, size, len(line))
                size += len(line)
        return size

    def _take(self, number: int, record: dict[str, Any], offset: int, size: int) -> None:
        kind = record.pop("kind")
        if (number == 1) != (kind == "journal"):
            raise JournalError(f"{self.path}:{number} is not a journal of this program; {_ANEW}")
        if kind == "journal":
            self._check(record)
            return
        self._noted = record["usage"]
        self.usage = {name: Counted(**usage) for name, usage in self._noted.items()}
        if kind == "usage":
            return
        if kind == "environment":
            self.environments.append(record["digest"])
            return
        key = RolloutKey(record["task"], record["rollout"])
        if kind == "result":
            self.results.put(key, _Place(offset, size, record["reward"]))
            self._has_result(key)
        elif key not in self._taken:
            failure_class, usage = FailureClass(record["failure_class"]), record.get("model_usage", {})
            self._has_failed(key, Failure(failure_class, record["message"], usage, record.get("is_final", False)))

    def _has_result(self, key: RolloutKey) -> None:
        self._taken.add(key)
        self.failures.pop(key, None)
        self.failed_tries.pop(key, None)

    def _has_failed(self, key: RolloutKey, failure: Failure) -> None:
        self.failures[key] = failure
        self.failed_tries[key] += 1

    def _check(self, found: dict[str, Any]) -> None:
        if found.pop("version") != _VERSION:
            raise JournalError(f"{self.path} was written by another version of this program; {_ANEW}")
        for name, expected in vars(self.header).items():
            if name == "dataset_digest" and found.get(name) != expected:
                raise JournalError(
                    f"{self.path} is this job's, but its dataset_digest is {found.get(name)!r} and that of the rows is "
                    f"now {expected!r}: rows must not change under a job; {_ANEW}"
                )
            if found.get(name) != expected:
                raise (ForeignJournal if name == "uid" else JournalError)(
                    f"{self.path} belongs to another evaluation: its {name} is {found.get(name)!r},"
                    f" this job's is {expected!r}; give the job a results volume of its own"
                )


def job_of(path: Path) -> str | None:
    """UID of the job whose journal that is; None if there is none, or not even its first line. Raises `OSError`."""
    try:
        with path.open("rb") as file:
            header = _record(file.readline())
    except FileNotFoundError:
        return None
    return header.get("uid") if header else None


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
