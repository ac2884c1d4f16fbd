"""`kubectl nhx` on real jobs: what it says of them, while they wait, run, fail and are cancelled."""

from __future__ import annotations

import csv
import io
import json

import pytest
from pyarrow import parquet

from e2e import runs
from e2e.installations import COLOCATED, GVISOR
from e2e.manifests import MCQA_TASKS, REPEATS
from e2e.runs import Run, rows_of
from e2e.stage import Stage
from support import cluster
from support.cluster import CommandError
from support.job_watch import condition

ROLLOUTS = MCQA_TASKS * REPEATS


def test_a_job_from_flags_is_the_job_that_a_manifest_makes(mcqa_colocated: Run, mcqa_runc: Run) -> None:
    flags, manifest = (dict(run.job["spec"]) for run in (mcqa_colocated, mcqa_runc))
    del flags["tasks"], manifest["tasks"]
    assert flags == manifest


def test_a_job_from_a_spec_file_is_the_job_that_a_manifest_makes(inference_provider: Run) -> None:
    made, wanted = inference_provider.job["spec"], inference_provider.facts["manifest"]["spec"]
    assert wanted["target"]["gym"].items() <= made["target"]["gym"].items()
    (model,) = made["models"]
    assert wanted["models"][0].items() <= model.items()
    assert made["tasks"]["dataset"] == wanted["tasks"]["dataset"]
    assert "persistentVolumeClaim" not in (made.get("results") or {})
    assert not made["target"]["gym"].get("envSecrets"), "the model's key is no affair of the sandbox"


def test_rows_of_this_machine_are_the_tasks_of_the_image(mcqa_colocated: Run, mcqa_runc: Run) -> None:
    assert mcqa_colocated.bundle and mcqa_runc.bundle
    ids = [{task["id"] for task in rows_of(run.bundle / "tasks.jsonl")} for run in (mcqa_colocated, mcqa_runc)]
    assert ids[0] == ids[1] and len(ids[0]) == MCQA_TASKS


def test_the_config_map_of_such_rows_goes_with_the_job(mcqa_colocated: Run) -> None:
    rows = cluster.get("configmap", "mcqa-rows", COLOCATED.jobs)
    assert [owner["uid"] for owner in rows["metadata"]["ownerReferences"]] == [mcqa_colocated.job["metadata"]["uid"]]


def test_watching_tells_every_step_to_the_end(mcqa_colocated: Run) -> None:
    told = mcqa_colocated.facts["watched"]
    assert told[-1]["phase"] == "Succeeded"
    assert told[-1]["progress"]["summary"] == f"{ROLLOUTS}/{ROLLOUTS}"
    assert {"starts Gym", "collects rollouts"} & {pod["doing"] for view in told for pod in view["pods"]}


def test_a_missing_object_is_explained_with_the_command_that_makes_it(missing_inputs: Run) -> None:
    for what, explained in missing_inputs.facts["explained"].items():
        kind, name = what.split()
        assert name in explained["cause"]["message"], what
        assert kind.lower() in " ".join(explained["advice"]).lower(), what
    advice = explained["advice"]
    assert f"kubectl create secret generic late-key --from-file=api-key=FILE -n {explained['namespace']}" in advice[0]


def test_a_start_that_took_too_long_is_explained_by_the_field_that_bounds_it(startup_timeout: Run) -> None:
    explained = startup_timeout.facts["explained"]
    assert explained["cause"]["reason"] == condition(startup_timeout.job, "Failed")["reason"]
    assert "target.gym.startupTimeoutSeconds" in explained["advice"][0]


def test_a_cancelled_job_keeps_what_it_recorded(cancelled: Run) -> None:
    assert cancelled.facts["told"] == [
        {"name": "cancelled", "namespace": COLOCATED.jobs, "phase": "Cancelled", "endedBefore": False}
    ]
    assert condition(cancelled.job, "Failed")["reason"] == "Cancelled"
    assert cancelled.facts["still running"] == []
    recorded = cancelled.status["progress"]["done"]
    assert 2 <= recorded < ROLLOUTS
    assert cancelled.bundle
    journal = (cancelled.bundle / "journal.jsonl").read_text().splitlines()
    assert len(journal) > recorded


@pytest.mark.parametrize(("scenario", "code"), [("mcqa_colocated", 0), ("startup_timeout", 5), ("cancelled", 6)])
def test_watching_a_job_that_has_ended_says_how_by_its_exit_code(
    stage: Stage, request: pytest.FixtureRequest, scenario: str, code: int
) -> None:
    run: Run = request.getfixturevalue(scenario)
    namespace, name = runs.key_of(run.job)
    try:
        runs.nhx(stage.world, "watch", name, f"--namespace={namespace}")
        ended = 0
    except CommandError as error:
        ended = error.code or 0
    assert ended == code


def test_results_list_and_export_agree_with_the_status(stage: Stage, mcqa_colocated: Run) -> None:
    here = f"--namespace={COLOCATED.jobs}"
    score = mcqa_colocated.aggregates["gym_reward.reward"]["value"]
    results = list(csv.DictReader(io.StringIO(runs.nhx(stage.world, "results", "mcqa", here, "-o", "csv"))))
    listed = {job["name"]: job for job in json.loads(runs.nhx(stage.world, "list", here, "-o", "json"))}
    file = stage.world.directory / "record.parquet"
    runs.nhx(stage.world, "list", "--all-namespaces", "--export", str(file))
    assert float(results[0]["value"]) == score == listed["mcqa"]["aggregates"][0]["value"]
    rows = parquet.read_table(file).to_pylist()
    (row,) = [
        row
        for row in rows
        if (row["namespace"], row["job"], row["aggregate"]) == (COLOCATED.jobs, "mcqa", "gym_reward.reward")
    ]
    assert row["value"] == score and row["phase"] == "Succeeded"


def test_a_report_is_brought_without_the_rest(stage: Stage, mcqa_gvisor: Run) -> None:
    file = stage.world.directory / "report.html"
    runs.nhx(stage.world, "report", "mcqa", f"--namespace={GVISOR.jobs}", "--no-open", "--file", str(file))
    assert mcqa_gvisor.bundle
    assert file.read_bytes() == (mcqa_gvisor.bundle / "report.html").read_bytes()
