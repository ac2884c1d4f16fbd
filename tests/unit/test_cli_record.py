"""The record of finished jobs: flat rows from their status, without opening a bundle."""

import csv
import io
import json
import sys

import pyarrow.parquet
import pytest

from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.api.outcome import STATISTICS
from nhx_gym_operator.api.status import JobAggregate
from nhx_gym_operator.cli.record import COLUMNS, Wanted, record, write_csv, write_parquet
from nhx_gym_operator.client.errors import UserError

REWARD = {
    "name": "gym_reward.reward",
    "kind": "range",
    "unit": "reward",
    "value": 1,
    "count": 10,
    "mean": 1,
    "stdDev": 0,
}
ACCURACY = {"name": "runner.gym.pass@1/accuracy", "kind": "scalar", "unit": "gym", "value": 80.5}


def job(name, *, gym=None, labels=None, dataset=None, model="org/Name-3.2", **status):
    return {
        "metadata": {"name": name, "namespace": "evals", "uid": f"uid-{name}"},
        "spec": {
            "tasks": {"dataset": dataset or {"bundled": "resources_servers/mcqa/data/example.jsonl"}},
            "target": {"gym": {"agent": "simple_agent", "resourcesServer": "mcqa", **(gym or {})}},
            "models": [{"name": "judge", "model": "judge-1"}, {"name": "policy", "model": model}],
            "labels": labels or {},
        },
        "status": {
            "phase": "Succeeded",
            "model": model,
            "completionTime": "2026-01-02T00:00:00Z",
            "aggregates": [REWARD, ACCURACY],
            "progress": {"done": 10, "failed": 0, "total": 10},
            "conditions": [{"type": "Complete", "status": "True", "reason": "AllRolloutsRecorded"}],
            **status,
        },
    }


def names(rows):
    return [row["job"] for row in rows]


def test_each_aggregate_of_a_job_is_one_row_with_all_columns():
    rows = record([job("mcqa")])
    assert [row["aggregate"] for row in rows] == ["gym_reward.reward", "runner.gym.pass@1/accuracy"]
    assert all(list(row) == list(COLUMNS) for row in rows)
    assert (rows[0]["value"], rows[0]["count"], rows[0]["unit"]) == (1, 10, "reward")


def test_a_single_number_has_a_value_and_no_mean():
    scalar = record([job("mcqa")])[1]
    assert (scalar["value"], scalar["mean"], scalar["count"]) == (80.5, None, None)


def test_a_job_that_ended_without_a_score_has_a_row():
    failed = job(
        "broken", phase="Failed", conditions=[{"type": "Failed", "status": "True", "reason": "ModelUnavailable"}]
    )
    del failed["status"]["aggregates"]
    [row] = record([failed])
    assert (row["job"], row["reason"], row["aggregate"]) == ("broken", "ModelUnavailable", None)


def test_a_job_that_still_runs_is_not_recorded():
    assert record([job("running", phase="Running"), job("new", phase=None)]) == []


def test_rows_stand_in_the_order_in_which_the_jobs_ended():
    late, early = job("a", completionTime="2026-01-03T00:00:00Z"), job("b", completionTime="2026-01-01T00:00:00Z")
    assert names(record([late, early])) == ["b", "b", "a", "a"]


def test_jobs_are_found_by_label_environment_and_model():
    jobs = [
        job("labelled", labels={"benchmark": "mcqa, run 2", "who": "x"}),
        job("own", gym={"resourcesServer": "words", "environment": {"fileSet": {"name": "wordcheck"}}}),
        job("other", model="org/Other"),
    ]

    def found(**wanted):
        return sorted(set(names(record(jobs, Wanted(**wanted)))))

    assert found(labels={"benchmark": "mcqa, run 2"}) == ["labelled"]
    assert found(labels={"benchmark": "mcqa, run 2", "who": "y"}) == []
    assert found(environment="wordcheck") == found(environment="words") == ["own"]
    assert found(environment="mcqa") == ["labelled", "other"]
    assert found(model="org/Other") == ["other"]
    assert found(model="judge-1") == []
    assert found() == ["labelled", "other", "own"]


@pytest.mark.parametrize(
    "source, shown",
    [
        ({"bundled": "a/b.jsonl"}, "bundled/a/b.jsonl"),
        ({"configMap": {"key": "rows", "name": "my"}}, "configMap/my/rows"),
        ({"fileSet": {"name": "my", "path": "x/rows.jsonl"}}, "fileSet/my/x/rows.jsonl"),
    ],
)
def test_the_dataset_is_named_by_its_source(source, shown):
    assert record([job("mcqa", dataset=source)])[0]["dataset"] == shown


def test_csv_keeps_any_text_in_a_cell():
    labels = {"note": 'a, "b"\nc'}
    out = io.StringIO()
    write_csv(record([job("mcqa", labels=labels)]), out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [row["aggregate"] for row in rows] == ["gym_reward.reward", "runner.gym.pass@1/accuracy"]
    assert json.loads(rows[0]["labels"]) == labels
    assert rows[1]["mean"] == ""


@pytest.mark.parametrize("model", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\n=1"])
def test_no_text_of_a_job_is_a_formula_or_steers_a_terminal_in_csv(model):
    out = io.StringIO()
    write_csv(record([job("mcqa", model=model, labels={"note": "\x9b31m\u202e"})]), out)
    assert not set(out.getvalue()) & set("\x9b\u202e")
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert {row["model"] for row in rows} == {f"'{model}"}
    assert json.loads(rows[0]["labels"]) == {"note": "\x9b31m\u202e"}


def test_csv_of_no_jobs_is_a_header():
    out = io.StringIO()
    write_csv([], out)
    assert out.getvalue() == ",".join(COLUMNS) + "\n"


def test_parquet_has_the_columns_types_whatever_the_api_server_made_of_a_number(tmp_path):
    write_parquet(record([job("mcqa")]), tmp_path / "record.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "record.parquet")
    assert table.schema.field("value").type == "double"
    assert table.schema.field("count").type == "int64"
    assert table.column("value").to_pylist() == [1.0, 80.5]
    assert table.column("mean").to_pylist() == [1.0, None]


def test_parquet_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        write_parquet([], tmp_path / "record.parquet")


def test_every_statistic_of_the_status_has_a_column():
    fields = {field.alias for field in JobAggregate.model_fields.values()}
    assert fields - {"name"} <= COLUMNS.keys()
    assert len(STATISTICS) == 6


def test_a_status_as_the_api_takes_it_gives_the_row():
    """The names in the record are those of the API."""
    body = job("mcqa")
    body["spec"]["models"][0]["baseUrl"] = body["spec"]["models"][1]["baseUrl"] = "http://model/v1"
    status = AgentEvalJob.model_validate(
        {"metadata": body["metadata"], "spec": body["spec"], "status": {"coverage": 1.0, "aggregates": [REWARD]}}
    ).status.to_dict()
    [row] = record([body | {"status": status | {"phase": "Failed"}}])
    assert (row["aggregate"], row["stdDev"], row["coverage"]) == ("gym_reward.reward", 0.0, 1.0)
