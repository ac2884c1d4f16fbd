from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from nhx_evals_sdk.agent_eval.runtimes.gym import GymRewardMetric
from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import materialize_dataset
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask

from nhx_gym_operator.api.rows import DatasetError
from nhx_gym_operator.evaluator.dataset import (
    Dataset,
    Subset,
    load_dataset,
    load_taskset,
    missing_bundled,
    unusable_mounted,
)
from nhx_gym_operator.evaluator.rollouts import task_row
from unit.evaluator_fakes import row, write_rows

LABEL = "ConfigMap rows key rows.jsonl"


def load(tmp_path: Path, content: bytes, limit: int | None = None) -> Dataset:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    return load_dataset(file, LABEL, Subset(limit), copy=tmp_path / "copy" / "rows.jsonl")


def lines(*numbers: int) -> bytes:
    return b"".join(json.dumps(row(number)).encode() + b"\n" for number in numbers)


CLEAN = lines(0, 1, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + CLEAN,
        CLEAN.replace(b"\n", b"\r\n"),
        CLEAN.replace(b"\n", b"\n\n  \n"),
        CLEAN.rstrip(b"\n"),
        b"\xef\xbb\xbf" + CLEAN.replace(b"\n", b"\r\n\r\n").rstrip(),
        b"".join(b"\xef\xbb\xbf" + line for line in CLEAN.splitlines(keepends=True)),
        b" \r\n\n\xef\xbb\xbf\n" + CLEAN,
    ],
    ids=[
        "byte-order mark",
        "CRLF",
        "blank lines",
        "no final newline",
        "all of it",
        "joined files",
        "blank first lines",
    ],
)
def test_a_file_saved_elsewhere_gives_the_task_ids_of_the_clean_one(tmp_path: Path, content: bytes) -> None:
    clean = load(tmp_path, CLEAN)
    saved = load(tmp_path, content)
    assert [task.id for task in saved.tasks] == [task.id for task in clean.tasks]
    assert saved.digest == clean.digest


def test_text_with_unicode_line_separators_stays_one_row(tmp_path: Path) -> None:
    content = json.dumps({**row(0), "note": "a\u2028b\u0085c"}, ensure_ascii=False).encode()
    assert len(load(tmp_path, content).tasks) == 1


def test_equal_rows_are_one_task_and_the_advice_is_num_repeats(tmp_path: Path) -> None:
    dataset = load(tmp_path, lines(1, 1, 1, 1, 1))
    assert len(dataset.tasks) == 1
    (notice,) = dataset.notices
    assert (notice.type, notice.reason) == ("RowsCollapsed", "DuplicateRows")
    assert "5 rows, 1 distinct" in notice.message and "numRepeats" in notice.message


def test_the_limit_counts_distinct_rows(tmp_path: Path) -> None:
    whole = load(tmp_path, lines(0, 1, 2))
    assert [task.id for task in load(tmp_path, lines(0, 0, 1, 2), limit=2).tasks] == [t.id for t in whole.tasks[:2]]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (b'{"responses_create_params": {}, "x": NaN}', "NaN"),
        (b'{"responses_create_params": {"temperature": -Infinity}}', "-Infinity"),
        (b'{"responses_create_params": {}, "x": 1e999}', "too large"),
        (b'{"responses_create_params": {}, "x": 36893488147419103232}', "64 bits"),
        (b'{"responses_create_params": {}, "x": "\\ud800"}', "surrogate"),
        (b'{"responses_create_params": {}', "column"),
        (b"[1, 2]", "JSON object"),
        (b'{"question": "x"}', "responses_create_params"),
        (b'{"responses_create_params": "x"}', "responses_create_params"),
        (b'{"responses_create_params": {}, "agent_ref": "x"}', "agent_ref"),
        (b'{"responses_create_params": {"input": "\xff"}}', "UTF-8"),
        (b'{"responses_create_params": {}}\x00', "column"),
        (b'{"responses_create_params": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    ],
)
def test_a_row_that_gym_would_refuse_is_refused_by_file_and_line(tmp_path: Path, broken: bytes, words: str) -> None:
    with pytest.raises(DatasetError) as refusal:
        load(tmp_path, CLEAN + b"\n" + broken + b"\n" + CLEAN)
    assert f"{LABEL}, line 5" in str(refusal.value) and words in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(CLEAN), "gzip"),
        (CLEAN.decode().encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04 rows.jsonl", "zip"),
        (b"PAR1\x15\x04", "Parquet"),
        (json.dumps([row(0), row(1)], indent=1).encode(), "one JSON array"),
        (CLEAN.replace(b"\n", b"\r"), "column"),
    ],
    ids=["gzip", "UTF-16", "zip", "Parquet", "array", "CR alone"],
)
def test_a_file_of_another_format_is_refused_with_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(DatasetError) as refusal:
        load(tmp_path, content)
    assert f"{LABEL}, line 1: " in str(refusal.value) and words in str(refusal.value)


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds no row"):
        load(tmp_path, b"\n \n")


def test_a_bundled_dataset_that_does_not_exist_is_answered_with_near_names(tmp_path: Path) -> None:
    write_rows(tmp_path / "resources_servers/mcqa/data/example.jsonl", [row(0)])
    write_rows(tmp_path / "resources_servers/xlam_fc/data/train.jsonl", [row(0)])
    error = missing_bundled(tmp_path / "resources_servers/mqca/data/example.jsonl", tmp_path)
    assert error is not None
    assert "spec.tasks.dataset.bundled" in str(error) and "resources_servers/mcqa/data/example.jsonl" in str(error)
    assert missing_bundled(tmp_path / "resources_servers/mcqa/data/example.jsonl", tmp_path) is None


def stored(path: Path, *tasks: dict[str, Any]) -> Dataset:
    file = path / "tasks.jsonl"
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return load_taskset(file, LABEL, Subset())


def as_stored(task: AgentEvalTask) -> dict[str, Any]:
    """As a bundle's `tasks.jsonl` has it."""
    return task.model_dump(mode="json")


def test_the_tasks_of_a_bundle_are_a_taskset_with_the_ids_of_their_rows(tmp_path: Path) -> None:
    dataset = load(tmp_path, lines(0, 1, 2))
    taskset = stored(tmp_path, *map(as_stored, dataset.tasks))
    assert [task.id for task in taskset.tasks] == [task.id for task in dataset.tasks]
    assert (taskset.digest, taskset.notices) == (dataset.digest, [])
    assert [task_row(task, 0) for task in taskset.tasks] == [task_row(task, 0) for task in dataset.tasks]


def test_a_stored_task_keeps_its_own_id_and_one_without_gets_the_hash_of_its_row(tmp_path: Path) -> None:
    first, second = (as_stored(task) for task in load(tmp_path, lines(0, 1)).tasks)
    hashed = second.pop("id")
    taskset = stored(tmp_path, first | {"id": "mcqa-0"}, second)
    assert [task.id for task in taskset.tasks] == ["mcqa-0", hashed]
    changed = first | {"id": "mcqa-0", "metadata": {"gym_row_extras": {"expected_answer": "1"}}}
    assert stored(tmp_path, changed, second).digest != taskset.digest


@pytest.mark.parametrize("missing", [("inputs", "gym_row"), ("metadata", "gym_row_extras")])
@pytest.mark.parametrize("value", [None, "text", [1]])
def test_a_task_without_both_halves_of_its_row_is_refused_as_documented(
    tmp_path: Path, missing: tuple[str, str], value: Any
) -> None:
    good, bad = (as_stored(task) for task in load(tmp_path, lines(0, 1)).tasks)
    part, key = missing
    bad[part][key] = value
    with pytest.raises(DatasetError) as refusal:
        stored(tmp_path, good, bad)
    words = f"task '{bad['id']}' is missing inputs['gym_row'] and/or metadata['gym_row_extras']"
    assert f"{LABEL}, line 2: {words}" in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": [{"type": "exact_match", "outputs": []}]}, "metric 'exact_match'"),
        ({"metrics": ["gym_reward", "llm_judge"]}, "metric 'llm_judge'"),
        ({"metrics": [{"type": "gym_reward", "outputs": [{"name": "score"}]}]}, "['score']"),
        ({"metrics": "gym_reward"}, "`metrics`"),
        ({"inputs": "text"}, "gym_row"),
        ({"inputs": {"gym_row": {"temperature": float("inf")}}}, "Infinity"),
        ({"reference": "text"}, "reference"),
        ({"rubric": {}}, "rubric"),
        ({"views": {"all": {"reducer": "all", "signals": [{"metric": "judge", "output": "x"}]}}}, "'judge'"),
    ],
)
def test_a_task_that_cannot_be_evaluated_is_refused_by_line_and_name(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    (task,) = load(tmp_path, lines(0)).tasks
    with pytest.raises(DatasetError) as refusal:
        stored(tmp_path, as_stored(task) | change)
    assert f"{LABEL}, line 1: " in str(refusal.value) and words in str(refusal.value)


@pytest.mark.parametrize("metrics", [None, [], ["gym_reward"], [{"type": "gym_reward"}]])
def test_every_task_is_scored_by_gyms_reward(tmp_path: Path, metrics: Any) -> None:
    (task,) = load(tmp_path, lines(0)).tasks
    for found in (task, *stored(tmp_path, as_stored(task) | {"metrics": metrics}).tasks):
        assert [type(metric) for metric in found.metrics] == [GymRewardMetric]


def test_equal_tasks_are_one_and_different_ones_of_one_id_are_refused_by_both_lines(tmp_path: Path) -> None:
    first, second = (as_stored(task) for task in load(tmp_path, lines(0, 1)).tasks)
    taskset = stored(tmp_path, first, second, dict(reversed(first.items())))
    assert len(taskset.tasks) == 2
    assert "3 rows, 2 distinct" in taskset.notices[0].message
    with pytest.raises(DatasetError, match="line 2: another task with the id 'same' stands on line 1"):
        stored(tmp_path, first | {"id": "same"}, second | {"id": "same"})


@pytest.mark.parametrize("change", [b"\xef\xbb\xbf%b", b"%b\n\n \n"], ids=["byte-order mark", "blank lines"])
def test_a_taskset_saved_elsewhere_is_the_clean_one(tmp_path: Path, change: bytes) -> None:
    clean = load(tmp_path, CLEAN)
    file = tmp_path / "tasks.jsonl"
    text = "\r\n".join(json.dumps(as_stored(task)) for task in clean.tasks)
    file.write_bytes(change % text.encode())
    assert load_taskset(file, LABEL, Subset()).digest == clean.digest


@pytest.mark.parametrize("params", [{}, {"input": []}, {"input": ""}, {"input": None}])
def test_rows_without_a_prompt_are_warned_about_with_their_number(tmp_path: Path, params: dict[str, Any]) -> None:
    rows = [row(0), {"responses_create_params": params, "question": "x"}, {"responses_create_params": params}]
    dataset = load(tmp_path, b"".join(json.dumps(each).encode() + b"\n" for each in rows))
    (notice,) = dataset.notices
    assert (notice.type, notice.reason) == ("PromptsMissing", "RowsWithoutPrompt")
    assert "2 of 3 tasks have no prompt" in notice.message and "gym dataset render" in notice.message


def test_a_warning_stands_in_the_log_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, lines(1, 1))
    assert [record.levelname for record in caplog.records if "2 rows, 1 distinct" in record.message] == ["WARNING"]


def test_only_the_tasks_asked_for_are_taken_in_the_files_order(tmp_path: Path) -> None:
    ids = [task.id for task in load(tmp_path, lines(0, 1, 2, 3)).tasks]
    file = tmp_path / "rows.jsonl"
    subset = load_dataset(file, LABEL, Subset(task_ids=[ids[3], ids[1]]), copy=tmp_path / "copy.jsonl")
    assert [task.id for task in subset.tasks] == [ids[1], ids[3]]
    with pytest.raises(DatasetError, match="no task no-such-id;") as refusal:
        load_dataset(file, LABEL, Subset(task_ids=[ids[0], "no-such-id"]), copy=tmp_path / "copy.jsonl")
    assert refusal.value.reason == "TaskNotFound"


def test_the_rows_that_gym_gets_are_those_of_the_sdks_own_materialized_dataset(tmp_path: Path) -> None:
    strange = row(7) | {"_ng_task_index": 9, "agent_ref": {"name": "own"}, "note": "é", "tools": [{"strict": None}]}
    tasks = load(tmp_path, lines(0, 1) + json.dumps(strange).encode()).tasks
    index = materialize_dataset(tasks, tmp_path / "theirs.jsonl")
    ours = "".join(json.dumps(task_row(task, number)) + "\n" for number, task in enumerate(tasks))
    assert ours == (tmp_path / "theirs.jsonl").read_text()
    assert index == {number: task.id for number, task in enumerate(tasks)}


def test_a_file_that_is_not_on_the_volume_is_answered_with_what_is(tmp_path: Path) -> None:
    root = tmp_path / "claim"
    write_rows(root / "sets/rows.jsonl", [row(0)])
    (root / "sets/more").mkdir()
    secret = write_rows(tmp_path / "api-key", [row(0)])
    (root / "linked.jsonl").symlink_to(secret)
    (root / "inside.jsonl").symlink_to("sets/rows.jsonl")

    def answer(path: str) -> str | None:
        error = unusable_mounted(root / path, root, f"persistentVolumeClaim c file {path}")
        return str(error) if error else None

    assert answer("sets/rows.jsonl") is None and answer("inside.jsonl") is None
    assert answer("sets/row.jsonl") == (
        "persistentVolumeClaim c file sets/row.jsonl does not exist; the folder sets holds more/, rows.jsonl"
    )
    assert "the volume holds inside.jsonl, linked.jsonl, sets/" in str(answer("no/such/rows.jsonl"))
    assert "is a folder, which holds more/, rows.jsonl" in str(answer("sets"))
    assert "leads out of the volume" in str(answer("linked.jsonl"))
    assert unusable_mounted(secret, root, "elsewhere") is None
