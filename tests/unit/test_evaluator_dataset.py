from __future__ import annotations

import json
from pathlib import Path

import pytest

from nhx_gym_operator.evaluator.dataset import Dataset, DatasetError, load_dataset, missing_bundled
from unit.evaluator_fakes import row, write_rows

LABEL = "ConfigMap rows key rows.jsonl"


def load(tmp_path: Path, content: bytes, limit: int | None = None) -> Dataset:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    return load_dataset(file, LABEL, limit=limit, copy=tmp_path / "copy" / "rows.jsonl")


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
    ],
    ids=["byte-order mark", "CRLF", "blank lines", "no final newline", "all of it"],
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
    (warning,) = dataset.warnings
    assert "5 rows, 1 distinct" in warning and "numRepeats" in warning


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
    ],
)
def test_a_row_that_gym_would_refuse_is_refused_by_file_and_line(tmp_path: Path, broken: bytes, words: str) -> None:
    with pytest.raises(DatasetError) as refusal:
        load(tmp_path, CLEAN + b"\n" + broken + b"\n" + CLEAN)
    assert f"{LABEL}, line 5" in str(refusal.value) and words in str(refusal.value)


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
