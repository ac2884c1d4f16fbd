"""The job's dataset, checked row by row before anything is spent on it."""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import discover_gym_tasks
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITE_SPACE = b" \t\r\n"
"""What JSON calls white space; anything else in an otherwise empty line is a broken row."""
_INTEGERS = range(-(2**63), 2**64)
"""What orjson, with which Gym reads rows, takes for an integer."""


class DatasetError(ValueError):
    """A dataset that cannot be used. Names file, line and fix."""


@dataclass(frozen=True)
class Dataset:
    """The tasks of a job: one per distinct row, in the file's order."""

    tasks: list[AgentEvalTask]
    digest: str
    """Over the task ids in order, which are themselves content hashes of the rows."""
    warnings: list[str] = field(default_factory=list)


def load_dataset(file: Path, label: str, *, limit: int | None, copy: Path) -> Dataset:
    """Read JSON Lines and make the SDK's tasks of it.

    A byte-order mark, CRLF line ends, blank lines and a missing final newline are read as if they were
    not there: `copy` receives the rows without them, and the SDK reads that, so task ids are those of
    the clean file. `label` is how messages name the file. Raises `DatasetError`.
    """
    rows = _checked_lines(_read(file, label), label)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(b"".join(line + b"\n" for line in rows))
    # The SDK warns about repeated rows in its own words; ours name the field to set.
    logging.getLogger("nhx_evals_sdk.agent_eval.runtimes.gym.dataset").setLevel(logging.ERROR)
    tasks = discover_gym_tasks(copy)
    warnings = []
    if len(tasks) < len(rows):
        warnings.append(
            f"{len(rows)} rows, {len(tasks)} distinct: equal rows are one task; "
            "repeated attempts come from spec.target.gym.numRepeats"
        )
    tasks = tasks[:limit]
    for task in tasks:
        task.metadata["gym_dataset_path"] = label
    digest = hashlib.sha256("\n".join(task.id for task in tasks).encode()).hexdigest()
    return Dataset(tasks, f"sha256:{digest}", warnings)


def near_names(file: Path, root: Path) -> list[str]:
    """Bundled datasets whose path is close to the one asked for."""
    known = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jsonl"))
    return difflib.get_close_matches(file.relative_to(root).as_posix(), known, n=5, cutoff=0.4)


def missing_bundled(file: Path, root: Path) -> DatasetError | None:
    """The error for a bundled dataset that is not in the image; None if it is there or not bundled."""
    if not file.is_relative_to(root) or file.is_file():
        return None
    near = near_names(file, root)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return DatasetError(f"no bundled dataset {file.relative_to(root)} (spec.tasks.dataset.bundled){hint}")


def _read(file: Path, label: str) -> bytes:
    try:
        return file.read_bytes().removeprefix(_BYTE_ORDER_MARK)
    except OSError as error:
        raise DatasetError(f"the dataset {label} cannot be read: {error.strerror}") from error


def _checked_lines(content: bytes, label: str) -> list[bytes]:
    lines = []
    for number, line in enumerate(content.split(b"\n"), 1):
        line = line.strip(_WHITE_SPACE)
        if not line:
            continue
        try:
            _check_row(line)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"the dataset {label}, line {number}: {error}") from error
        lines.append(line)
    if not lines:
        raise DatasetError(f"the dataset {label} holds no row")
    return lines


def _check_row(line: bytes) -> None:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"{error.msg} at column {error.colno}"
        raise ValueError(f"not a JSON value ({where}); each line is one JSON object") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object; each line is one row")
    if not isinstance(row.get("responses_create_params"), Mapping):
        raise ValueError("no `responses_create_params` object, which NeMo Gym needs in every row")
    _check_agent(row)
    for value in _scalars(row):
        if isinstance(value, int) and value not in _INTEGERS:
            raise ValueError(f"{str(value)[:40]} has more than 64 bits, which NeMo Gym refuses; write it as text")
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise ValueError("a number too large for JSON readers, which NeMo Gym refuses; write it as text")
        if isinstance(value, str) and not value.isascii():
            _check_text(value)


def _check_agent(row: Mapping[str, Any]) -> None:
    agent = row.get("agent_ref")
    if agent is not None and not (isinstance(agent, Mapping) and isinstance(agent.get("name"), str)):
        raise ValueError('`agent_ref` is not of the form {"name": "<agent instance>"}; remove or correct it')


def _check_text(value: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("a text holds half of a surrogate pair (\\ud800–\\udfff), which NeMo Gym refuses") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"holds {name}, which is not JSON and which NeMo Gym refuses; use null or leave the key out")


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _scalars(item)
    elif isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    else:
        yield value
