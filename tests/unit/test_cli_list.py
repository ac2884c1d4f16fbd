"""`kubectl nhx list` and `cancel`, `report`: over several jobs, and what they leave alone."""

import csv
import io
import json

import pyarrow.parquet
import pytest

from nhx_gym_operator.cli.exits import ExitCode
from support.cli_values import call, condition, evaluator, job

SCORE = {"name": "gym_reward.reward", "value": 0.8, "kind": "range", "unit": "reward", "count": 10}
OTHER = {"name": "runner.gym.accuracy", "value": 80, "kind": "scalar", "unit": "gym"}


@pytest.fixture
def three(cluster):
    one = job("one", {"labels": {"benchmark": "mcqa"}}, aggregates=[SCORE, OTHER], reward="0.80", coverage=1)
    two = job("two", phase="Running", progress={"summary": "2/10"}, model="org/other")
    gone = [condition("Failed", True, "ModelUnavailable", "no call was answered")]
    three = job("three", phase="Failed", conditions=gone, reward=None)
    cluster.write("jobs", [one, two, three])
    return cluster


def names(output):
    return [line.split()[0] for line in output.splitlines()[1:]]


def test_a_list_is_a_line_for_each_job(three):
    output = call("list").output
    assert output.splitlines()[0].split() == ["NAME", "PHASE", "PROGRESS", "REWARD", "MODEL", "AGE"]
    assert names(output) == ["one", "three", "two"]


def test_a_wide_list_says_environment_labels_why_aggregates_and_where(three):
    more = [{"name": f"runner.gym.{name}", "value": 216.4, "kind": "scalar", "unit": "gym"} for name in ("tokens", "b")]
    first, *others = three.read("jobs")
    first["status"]["aggregates"] += more
    three.write("jobs", [first, *others])
    lines = call("list", "--wide").output.splitlines()
    one = next(line for line in lines if line.startswith("one"))
    assert "benchmark=mcqa" in one and "persistentVolumeClaim/mcqa-results" in one and " mcqa " in one
    assert "runner.gym.accuracy=80.0, runner.gym.tokens=216.4 (+1)" in one, "all but the reward, which has a column"
    assert "ModelUnavailable" in next(line for line in lines if line.startswith("three"))


def test_what_somebody_wrote_into_a_job_steers_nobodys_terminal(cluster):
    escapes = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
    cluster.write("jobs", [job("one", {"labels": {"benchmark": escapes}}, model=f"org/{escapes}")])
    output = call("list", "--wide").output
    assert not set(output) & set("\x1b\x07\x9b\u202e")
    assert r"org/\x1b]0;owned\x07" in output


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        (["--finished"], ["one", "three"]),
        (["--model=org/other"], ["two"]),
        (["--label=benchmark=mcqa"], ["one"]),
        (["--environment=mcqa"], ["one", "three", "two"]),
    ],
)
def test_jobs_are_chosen_by_what_they_are_about(three, flags, chosen):
    assert names(call("list", *flags).output) == chosen


def test_json_holds_what_the_status_says(three):
    found = {entry["name"]: entry for entry in json.loads(call("list", "-o", "json").output)}
    assert found["one"]["aggregates"] == [SCORE, OTHER] and found["one"]["labels"] == {"benchmark": "mcqa"}
    assert found["three"]["reason"] == "ModelUnavailable" and found["two"]["phase"] == "Running"


def test_csv_is_a_row_for_each_finished_job_and_aggregate(three):
    rows = list(csv.DictReader(io.StringIO(call("list", "-o", "csv").output)))
    assert [(row["job"], row["aggregate"]) for row in rows] == [
        ("one", "gym_reward.reward"),
        ("one", "runner.gym.accuracy"),
        ("three", ""),
    ]


def test_an_export_writes_the_same_rows_as_csv_and_as_parquet(three, tmp_path):
    for name in ("all.csv", "all.parquet"):
        result = call("list", "--export", tmp_path / name)
        assert "3 rows of " in result.output, result.output
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    table = pyarrow.parquet.read_table(tmp_path / "all.parquet").to_pylist()
    assert [row["job"] for row in rows] == [row["job"] for row in table] == ["one", "one", "three"]
    assert table[0]["value"] == 0.8 == float(rows[0]["value"])


def test_an_export_into_another_kind_of_file_is_refused(three, tmp_path):
    result = call("list", "--export", tmp_path / "all.xlsx")
    assert result.exit_code == ExitCode.USAGE and ".parquet" in result.output
    assert not (tmp_path / "all.xlsx").exists()


def test_no_job_is_no_error(cluster):
    result = call("list")
    assert result.exit_code == ExitCode.DONE and "there are no such jobs" in result.stderr
    assert json.loads(call("list", "-o", "json").stdout) == []


def test_results_as_csv_are_the_rows_of_the_record(three):
    rows = list(csv.DictReader(io.StringIO(call("results", "one", "-o", "csv").output)))
    assert [row["aggregate"] for row in rows] == ["gym_reward.reward", "runner.gym.accuracy"]


# cancel


def test_a_cancelled_job_is_patched_and_nothing_else_of_it(three):
    result = call("cancel", "two")
    assert result.exit_code == ExitCode.DONE and "two is being cancelled" in result.output
    assert [body.get("spec", {}).get("cancel") for body in three.read("jobs")] == [None, True, None]
    (patch,) = three.calls("patch")
    assert '--patch={"spec": {"cancel": true}}' in patch and "--type=merge" in patch


def test_a_job_that_has_ended_is_left_as_it_is(three):
    result = call("cancel", "one")
    assert result.exit_code == ExitCode.DONE and "has ended already (Succeeded)" in result.output
    assert three.calls("patch") == []


def test_a_cancellation_that_waits_returns_when_the_job_has_ended(three, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.cancel.POLL_SECONDS", 0.01)
    three.write("script", {"story": [{}, {}, {"phase": "Cancelled"}]})
    result = call("cancel", "two", "--wait", "-o", "json")
    (told,) = json.loads(result.stdout)
    assert (told["name"], told["phase"], told["endedBefore"]) == ("two", "Cancelled", False)


def test_a_cancellation_does_not_wait_longer_than_it_was_told(three, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.cancel.POLL_SECONDS", 0.01)
    assert call("cancel", "two", "--wait", "--timeout=0.05").exit_code == ExitCode.TIMEOUT


def test_several_jobs_are_cancelled_all_though_one_is_not_there(three):
    result = call("cancel", "one", "nowhere", "two", "-o", "json")
    assert result.exit_code == ExitCode.NOT_FOUND and "no AgentEvalJob `nowhere`" in result.stderr
    assert [told["name"] for told in json.loads(result.stdout)] == ["one", "two"]
    assert [body.get("spec", {}).get("cancel") for body in three.read("jobs")] == [None, True, None]


def test_all_jobs_are_asked_to_end_before_one_is_waited_for(cluster, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.cancel.POLL_SECONDS", 0.01)
    cluster.write("jobs", [job(name, phase="Running") for name in ("one", "two")])
    result = call("cancel", "one", "two", "--wait", "--timeout=0.05", "-o", "json")
    assert result.exit_code == ExitCode.TIMEOUT
    assert [body["spec"]["cancel"] for body in cluster.read("jobs")] == [True, True]
    assert [told["name"] for told in json.loads(result.stdout)] == ["one", "two"]


@pytest.mark.parametrize("command", [("cancel", "two"), ("submit", "job.yaml")])
def test_a_time_to_wait_without_waiting_is_a_mistake(three, command):
    result = call(*command, "--timeout=5m")
    assert result.exit_code == ExitCode.USAGE and "--wait" in result.stderr
    assert three.calls() == []


# report


def test_a_report_alone_is_copied_and_opened(cluster, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    cluster.add_result("attempt-1/report.html", b"<html>")
    cluster.add_result("attempt-1/gym_run/rollouts.jsonl", b"x" * 100_000)

    result = call("report", "mcqa", "--file", tmp_path / "mine.html")

    assert result.exit_code == ExitCode.DONE, result.output
    assert (tmp_path / "mine.html").read_bytes() == b"<html>"
    assert opened == [(tmp_path / "mine.html").as_uri()]
    assert [item["metadata"]["name"] for item in cluster.read("pods")] == ["mcqa-evaluator-1"]


def test_a_report_overwrites_no_file(cluster, tmp_path):
    cluster.write("jobs", [job()])
    (tmp_path / "mine.html").write_text("mine")
    assert call("report", "mcqa", "--file", tmp_path / "mine.html").exit_code == ExitCode.USAGE
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_bundle_without_a_report_says_so(cluster):
    cluster.write("jobs", [job(phase="Failed")])
    cluster.write("pods", [evaluator()])
    cluster.add_result("attempt-1/run.json", b"{}")
    result = call("report", "mcqa", "--no-open")
    assert result.exit_code == ExitCode.NOT_FOUND and "has no report" in result.output
