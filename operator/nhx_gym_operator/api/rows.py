"""The lines of a dataset, each an object that NeMo Gym can read as a row. What is none is refused by file and line:
by the evaluator, and by the plugin before it sends a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .conditions import RunReason

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITE_SPACE = b" \t\r\n"
"""What JSON calls white space; anything else in an otherwise empty line is a broken row."""
_INTEGERS = range(-(2**63), 2**64)
"""What orjson, with which Gym reads rows, takes for an integer."""
_OTHER_FORMATS = {
    b"\x1f\x8b": "compressed with gzip; unpack it",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"PAR1": "in Parquet format; convert it to JSON Lines",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}


class DatasetError(ValueError):
    """A dataset that cannot be used. Names file, line and fix."""

    def __init__(self, message: str, reason: RunReason = RunReason.DATASET_INVALID) -> None:
        super().__init__(message)
        self.reason = reason


def read_lines[T](lines: Iterable[bytes], label: str, read: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
    """Number and meaning of each line that is not blank, one at a time, since a file may be large. `label` is how
    messages name the file. A ValueError of `read` becomes a `DatasetError` with file and line."""
    empty = True
    for number, line in enumerate(lines, 1):
        # Files that were joined bring a byte-order mark each.
        content = line.removeprefix(_BYTE_ORDER_MARK).strip(_WHITE_SPACE)
        if not content:
            continue
        if empty:
            _check_format(line, label)
        empty = False
        try:
            meaning = read(content)
        except RecursionError as error:
            raise DatasetError(f"{label}, line {number}: nested too deeply") from error
        except ValueError as error:
            raise DatasetError(f"{label}, line {number}: {error}") from error
        yield number, meaning
    if empty:
        raise DatasetError(f"{label} is empty: it holds no row")


def _check_format(line: bytes, label: str) -> None:
    """Refuses by the first line what is no JSON Lines file at all, in words that say what it is."""
    found = next((words for start, words in _OTHER_FORMATS.items() if line.startswith(start)), None)
    if found is None and line.strip(_WHITE_SPACE) == b"[":
        found = "one JSON array; write each of its objects on a line of its own (`jq -c '.[]'`)"
    if found:
        raise DatasetError(f"{label}, line 1: the file is {found}")


def checked_row(line: bytes) -> bytes:
    """The line itself. Raises ValueError for one that is no row."""
    check_row(object_in(line))
    return line


def object_in(line: bytes) -> dict[str, Any]:
    """Raises ValueError for a line that is no JSON object."""
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"{error.msg} at column {error.colno}"
        raise ValueError(f"not a JSON value ({where}); each line is one JSON object") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object; each line is one")
    return row


def check_row(row: Mapping[str, Any]) -> None:
    """Raises ValueError for what NeMo Gym would refuse."""
    if not isinstance(row.get("responses_create_params"), Mapping):
        raise ValueError(
            "no `responses_create_params` object, which NeMo Gym needs in every row; where a prompt template makes it, "
            "run `gym dataset render` first"
        )
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
