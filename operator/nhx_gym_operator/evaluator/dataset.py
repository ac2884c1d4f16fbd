"""The job's tasks, from its dataset or its stored tasks, before anything is spent on them."""

from __future__ import annotations

import difflib
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nhx_evals_sdk.agent_eval.runtimes.gym import GymRewardMetric
from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import _canonical_row_hash, discover_gym_tasks, gym_task_row
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask
from nhx_evals_sdk.metrics.utils import metric_type_name
from pydantic import ValidationError

from ..api.conditions import ConditionType, NoticeReason, RunReason
from ..api.rows import DatasetError, check_row, checked_row, object_in, read_lines
from ..api.wire.endpoints import Notice
from ..api.wording import some_of

_LISTED = 5
_REWARD = GymRewardMetric()
"""What scores a task: one for all, since it has no state."""

log = logging.getLogger(__name__)


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
    for number, task in _lines_of(file, label, _stored_task):
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


def _entries(folder: Path) -> str:
    names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir())
    return some_of(names, _LISTED) or "nothing"


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
        raise DatasetError(
            f"spec.tasks.taskIds: {label} has no task {some_of(sorted(unknown), _LISTED)}; a row's id is the hash of "
            "its content and changes with it, and tasks.jsonl of an earlier run's bundle lists the ids",
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


def _lines_of[T](file: Path, label: str, read: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
    """As `read_lines`; a file that cannot be read is refused too."""
    try:
        with file.open("rb") as lines:
            yield from read_lines(lines, label, read)
    except OSError as error:
        raise _unreadable(label, error) from error


def _unreadable(label: str, error: OSError) -> DatasetError:
    words = "user 1000, as which pods run, may not" if isinstance(error, PermissionError) else error.strerror
    return DatasetError(f"{label} cannot be read: {words}")


def _copy_rows(file: Path, label: str, copy: Path) -> int:
    """How many rows there are; each is checked, and copied without what is not JSON around it."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    rows = 0
    with copy.open("wb") as out:
        for _, line in _lines_of(file, label, checked_row):
            out.write(line + b"\n")
            rows += 1
    return rows


def _stored_task(line: bytes) -> AgentEvalTask:
    """Raises ValueError for one that cannot be evaluated here."""
    task = object_in(line)
    name = str(task.get("id") or "without an id")
    inputs, metadata = task.get("inputs"), task.get("metadata")
    params, extras = gym_task_row(
        task_id=name,
        inputs=inputs if isinstance(inputs, Mapping) else {},
        metadata=metadata if isinstance(metadata, Mapping) else {},
    )
    row = {**extras, "responses_create_params": params}
    check_row(row)
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
