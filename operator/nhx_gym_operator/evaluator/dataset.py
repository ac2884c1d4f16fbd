"""The job's dataset or taskset, checked line by line before anything is spent on it."""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nhx_evals_sdk.agent_eval.runtimes.gym import GymRewardMetric
from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import _canonical_row_hash, discover_gym_tasks, gym_task_row
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask
from nhx_evals_sdk.metrics.utils import metric_type_name
from pydantic import ValidationError

from ..api.conditions import ConditionType, NoticeReason, RunReason
from ..api.wire.endpoints import Notice

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
_LISTED = 5
_REWARD = GymRewardMetric()
"""What scores a task: one for all, since it has no state."""

log = logging.getLogger(__name__)


class DatasetError(ValueError):
    """A dataset that cannot be used. Names file, line and fix."""

    def __init__(self, message: str, reason: RunReason = RunReason.DATASET_INVALID) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Subset:
    """Which tasks are wanted: the first so many, or those of these ids. By default all."""

    limit: int | None = None
    task_ids: Sequence[str] = ()


@dataclass(frozen=True)
class Dataset:
    """The tasks of a job: one per distinct row, in the file's order."""

    tasks: list[AgentEvalTask]
    digest: str
    """Over the tasks' rows in order, by the content hash that is a row's id."""
    notices: list[Notice] = field(default_factory=list)


def load_dataset(file: Path, label: str, subset: Subset, *, copy: Path) -> Dataset:
    """Read JSON Lines and make the SDK's tasks of it.

    A byte-order mark, CRLF line ends, blank lines and a missing final newline are read as if they were
    not there: `copy` receives the rows without them, and the SDK reads that, so task ids are those of
    the clean file. `label` is how messages name the file. Raises `DatasetError`.
    """
    rows = _copy_rows(file, label, copy)
    # The SDK warns about repeated rows in its own words; ours name the field to set.
    logging.getLogger("nhx_evals_sdk.agent_eval.runtimes.gym.dataset").setLevel(logging.ERROR)
    tasks = discover_gym_tasks(copy, metrics=[_REWARD])
    return _dataset(tasks, rows, label, subset, lambda task: task.id)


def load_taskset(file: Path, label: str, subset: Subset) -> Dataset:
    """Read stored tasks: one `AgentEvalTask` of `discover_gym_tasks` a line, as JSON.

    A task keeps its id; one without gets the hash of its row. Equal tasks are one, as equal rows are. Raises
    `DatasetError`, also for a metric other than Gym's reward, which is all that can be computed here.
    """
    tasks: list[AgentEvalTask] = []
    first_with: dict[str, tuple[int, AgentEvalTask]] = {}
    lines = 0
    for number, task in _each(file, label, _stored_task):
        lines += 1
        line, known = first_with.setdefault(task.id, (number, task))
        if known is task:
            tasks.append(task)
        elif known != task:
            raise DatasetError(
                f"{label}, line {number}: another task with the id {task.id!r} stands on line {line}; "
                "give each task an id of its own, or leave ids out"
            )
    return _dataset(tasks, lines, label, subset, _stored_identity)


def near_names(file: Path, root: Path) -> list[str]:
    """Bundled datasets whose path is close to the one asked for."""
    known = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jsonl"))
    return difflib.get_close_matches(file.relative_to(root).as_posix(), known, n=_LISTED, cutoff=0.4)


def missing_bundled(file: Path, root: Path) -> DatasetError | None:
    """The error for a bundled dataset that is not in the image; None if it is there or not bundled."""
    if not file.is_relative_to(root) or file.is_file():
        return None
    near = near_names(file, root)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return DatasetError(f"no bundled dataset {file.relative_to(root)} (spec.tasks.dataset.bundled){hint}")


def unusable_mounted(file: Path, root: Path, label: str) -> DatasetError | None:
    """The error for a file that is not on the volume mounted at `root`; None if it is there, or elsewhere."""
    if not file.is_relative_to(root):
        return None
    try:
        if file.is_file():
            inside = file.resolve().is_relative_to(root.resolve())
            words = f"{label} is a link that leads out of the volume; store the file itself there"
            return None if inside else DatasetError(words)
        if file.is_dir():
            return DatasetError(f"{label} is a folder, which holds {_entries(file)}; name the file")
        folder = next(parent for parent in file.parents if parent.is_dir())
        where = f"the folder {folder.relative_to(root)}" if folder != root else "the volume"
        return DatasetError(f"{label} does not exist; {where} holds {_entries(folder)}")
    except OSError as error:
        return _unreadable(label, error)


def _unreadable(label: str, error: OSError) -> DatasetError:
    words = "user 1000, as which pods run, may not" if isinstance(error, PermissionError) else error.strerror
    return DatasetError(f"{label} cannot be read: {words}")


def _entries(folder: Path) -> str:
    names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir())
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED]) or 'nothing'}{more}"


def _dataset(
    tasks: list[AgentEvalTask], lines: int, label: str, subset: Subset, identity: Callable[[AgentEvalTask], str]
) -> Dataset:
    notices = [notice for notice in (_duplicates(lines, len(tasks)), _promptless(tasks)) if notice]
    for notice in notices:
        log.warning("%s: %s", label, notice.message)
    chosen = _chosen(tasks, label, subset)
    for task in chosen:
        task.metadata["gym_dataset_path"] = label
    digest = hashlib.sha256("\n".join(map(identity, chosen)).encode()).hexdigest()
    return Dataset(chosen, f"sha256:{digest}", notices)


def _stored_identity(task: AgentEvalTask) -> str:
    """An id that is no hash does not change with the row, so the row's hash stands beside it."""
    content = _canonical_row_hash(
        {**task.metadata["gym_row_extras"], "responses_create_params": task.inputs["gym_row"]}
    )
    return task.id if task.id == content else f"{task.id} {content}"


def _chosen(tasks: list[AgentEvalTask], label: str, subset: Subset) -> list[AgentEvalTask]:
    if not subset.task_ids:
        return tasks[: subset.limit]
    wanted = set(subset.task_ids)
    unknown = wanted - {task.id for task in tasks}
    if unknown:
        names = ", ".join(sorted(unknown)[:_LISTED])
        more = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
        raise DatasetError(
            f"spec.tasks.taskIds: {label} has no task {names}{more}; a row's id is the hash of its content and changes "
            "with it, and tasks.jsonl of an earlier run's bundle lists the ids",
            RunReason.TASK_NOT_FOUND,
        )
    return [task for task in tasks if task.id in wanted]


def _duplicates(lines: int, distinct: int) -> Notice | None:
    if distinct == lines:
        return None
    return Notice(
        type=ConditionType.ROWS_COLLAPSED,
        reason=NoticeReason.DUPLICATE_ROWS,
        message=f"{lines} rows, {distinct} distinct: equal rows are one task; "
        "repeated attempts come from spec.target.gym.numRepeats",
    )


def _promptless(tasks: Sequence[AgentEvalTask]) -> Notice | None:
    """As `validate_prompt_compatibility` of nemo_gym 0.5.0 sees it (`prompt.py`): a row with an `input` needs no
    template. There is none either in the rows of environments whose agent makes the prompt."""
    count = sum(not task.inputs["gym_row"].get("input") for task in tasks)
    if not count:
        return None
    return Notice(
        type=ConditionType.PROMPTS_MISSING,
        reason=NoticeReason.ROWS_WITHOUT_PROMPT,
        message=f"{count} of {len(tasks)} tasks have no prompt (responses_create_params.input is empty), and prompt "
        "templates are not filled in here: unless the environment's own agent makes the prompt, fill them in with "
        "`gym dataset render` first",
    )


def _copy_rows(file: Path, label: str, copy: Path) -> int:
    """How many rows there are; each is checked, and copied without what is not JSON around it."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    rows = 0
    with copy.open("wb") as out:
        for _, line in _each(file, label, _checked_row):
            out.write(line + b"\n")
            rows += 1
    return rows


def _each[T](file: Path, label: str, read: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
    """Number and meaning of each line that is not blank. One line at a time: a file may be large."""
    empty = True
    try:
        with file.open("rb") as lines:
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
    except OSError as error:
        raise _unreadable(label, error) from error
    if empty:
        raise DatasetError(f"{label} is empty: it holds no row")


def _check_format(line: bytes, label: str) -> None:
    """Refuses by the first line what is no JSON Lines file at all, in words that say what it is."""
    found = next((words for start, words in _OTHER_FORMATS.items() if line.startswith(start)), None)
    if found is None and line.strip(_WHITE_SPACE) == b"[":
        found = "one JSON array; write each of its objects on a line of its own (`jq -c '.[]'`)"
    if found:
        raise DatasetError(f"{label}, line 1: the file is {found}")


def _checked_row(line: bytes) -> bytes:
    _check_row(_object(line))
    return line


def _stored_task(line: bytes) -> AgentEvalTask:
    """Raises ValueError for one that cannot be evaluated here."""
    task = _object(line)
    name = str(task.get("id") or "without an id")
    inputs, metadata = task.get("inputs"), task.get("metadata")
    params, extras = gym_task_row(
        task_id=name,
        inputs=inputs if isinstance(inputs, Mapping) else {},
        metadata=metadata if isinstance(metadata, Mapping) else {},
    )
    row = {**extras, "responses_create_params": params}
    _check_row(row)
    _check_metrics(task.pop("metrics", None) or [], name)
    task.setdefault("id", _canonical_row_hash(row))
    task.setdefault("intent", "Gym row")
    try:
        return AgentEvalTask(**task, metrics=[_REWARD])
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ValueError(f"task {name!r} is not one of the SDK's: {where or 'the task'}: {problem['msg']}") from error


def _check_metrics(metrics: object, name: str) -> None:
    """As a task is stored, its metrics are names with their outputs. Only Gym's reward can be made again from that."""
    if not isinstance(metrics, list):
        raise ValueError(f"`metrics` of task {name!r} is not a list")
    ours = metric_type_name(_REWARD)
    for metric in metrics:
        kind = metric.get("type") if isinstance(metric, Mapping) else metric
        if kind != ours:
            raise ValueError(
                f"task {name!r} asks for the metric {kind!r}, which does not work here; only {ours!r} does, and a "
                "task without `metrics` has it"
            )
        outputs = metric.get("outputs") if isinstance(metric, Mapping) else None
        named = [output.get("name") for output in outputs or () if isinstance(output, Mapping)]
        if named not in ([], [_REWARD.output_name]):
            raise ValueError(f"task {name!r} names the output of {ours!r} {named}; it is {_REWARD.output_name!r} here")


def _object(line: bytes) -> dict[str, Any]:
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


def _check_row(row: Mapping[str, Any]) -> None:
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
