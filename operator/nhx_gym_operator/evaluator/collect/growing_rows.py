"""Rows that Gym adds to a file while it is read, within what is taken of one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nhx_evals_sdk.agent_eval.runtimes.gym.records import NG_ROLLOUT_INDEX, NG_TASK_INDEX

from ...api.wire.reports import FailureClass
from ..memory import json_values
from ..rollouts import Failure, RolloutKey
from .answers import Limit

_INDEX = re.compile(rb'"_ng_(task|rollout)_index": ?(\d{1,9})\b')


class GrowingRows:
    """Reads the rows that were added to a growing JSON Lines file; a row without its end waits. One that is larger than
    `limit` is a failure, and is never held as a whole."""

    def __init__(self, file: Path, limit: Limit) -> None:
        self._file = file
        self._limit = limit
        self._read = 0
        self._passed_over: dict[bytes, bytes] | None = None
        """Of a row that is too large: its indices, as far as they were seen."""

    def added(self) -> Iterator[tuple[RolloutKey, dict[str, Any] | Failure]]:
        """Each row that has come to its end since the last look, by the rollout that it is of."""
        if not self._file.exists():
            return
        size, values = self._limit
        with self._file.open("rb") as file:
            file.seek(self._read)
            while line := file.readline(size):
                ends = line.endswith(b"\n")
                if not ends and len(line) < size:
                    return
                self._read += len(line)
                if self._passed_over is not None or not ends:
                    self._passed_over = {**(self._passed_over or {}), **dict(_INDEX.findall(line))}
                    if ends:
                        yield _key_in(self._passed_over), _too_large(f"{size / (1 << 20):g} MiB")
                        self._passed_over = None
                elif json_values(line, values) > values:
                    yield _key_in(dict(_INDEX.findall(line))), _too_large(f"{values} JSON values")
                elif line.strip():
                    row = json.loads(line)
                    yield key_of(row), row


def key_of(row: Mapping[str, Any]) -> RolloutKey:
    """The rollout that a row of Gym's is of; -1 for an index that it lacks."""
    return RolloutKey(row.get(NG_TASK_INDEX, -1), row.get(NG_ROLLOUT_INDEX, -1))


def _key_in(indices: Mapping[bytes, bytes]) -> RolloutKey:
    return RolloutKey(int(indices.get(b"task", -1)), int(indices.get(b"rollout", -1)))


def _too_large(most: str) -> Failure:
    return Failure(FailureClass.ENVIRONMENT, f"its result is larger than {most}, the most that is taken")
