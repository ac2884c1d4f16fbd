"""`kubectl nhx`: the bundle and the logs, on one's own machine."""

from __future__ import annotations

import pytest

from e2e.runs import Run, rows_of, strict_json, tree_of
from e2e.sdk_alone import SdkRun
from support.job_watch import condition

BUNDLE = ("run.json", "metadata.json", "summary.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "report.html")


@pytest.mark.parametrize("run", ["mcqa_gvisor", "mcqa_colocated", "replaced_children"], indirect=True)
def test_a_downloaded_bundle_is_the_sdks_with_gyms_own_files(run: Run) -> None:
    assert run.bundle
    assert not [name for name in BUNDLE if not (run.bundle / name).is_file()]
    assert (run.bundle / "gym_run/rollouts.jsonl").is_file()


OF_THE_COMMAND_LINE = {"gym_validate.log", "gym_eval.stdout.log", "gym_eval.stderr.log"}
"""What only a `gym` command prints. In a sandbox Gym is started without one."""


@pytest.mark.parametrize("run", ["mcqa_gvisor", "mcqa_runc", "mcqa_colocated"], indirect=True)
def test_gym_run_holds_what_a_local_run_leaves_by_the_same_names_and_keys(run: Run, sdk_run: SdkRun) -> None:
    assert run.bundle
    folder = run.bundle / "gym_run"
    theirs = {name: keys for name, keys in sdk_run.files.items() if not name.startswith("gym_hydra/")}
    if run.status["placement"] == "Sandboxed":
        theirs = {name: keys for name, keys in theirs.items() if name not in OF_THE_COMMAND_LINE}
    ours = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert theirs.keys() - ours == set()
    for name, keys in theirs.items():
        if keys:
            assert sorted(rows_of(folder / name)[0]) == keys, name


@pytest.mark.parametrize("run", ["mcqa_gvisor", "mcqa_colocated", "real_model"], indirect=True)
def test_every_json_file_of_a_bundle_is_strict_json(run: Run) -> None:
    assert run.bundle
    files = sorted(run.bundle.rglob("*.json*"))
    assert len(files) > len(BUNDLE)
    for file in files:
        if file.suffix == ".jsonl":
            assert all(isinstance(row, dict) for row in rows_of(file)), file
        else:
            strict_json(file.read_text())


def test_recorded_rollouts_are_saved_from_the_emptydir_of_a_running_job(inference_provider: Run) -> None:
    saved = inference_provider.facts["saved"]
    records = [line["record"] for line in rows_of(saved / "journal.jsonl")]
    rewards = [record["result"]["reward"] for record in records if record["kind"] == "result"]
    assert len(rewards) >= 2 and set(rewards) <= {0.0, 1.0}
    assert not (saved / "summary.json").exists()


def test_results_of_an_emptydir_go_with_the_pod_and_the_aggregates_stay(inference_provider: Run) -> None:
    assert inference_provider.status["results"]["location"] == "emptyDir"
    assert "went with its pod" in inference_provider.facts["too late"]
    assert inference_provider.aggregates["gym_reward.reward"]["count"] == inference_provider.status["progress"]["total"]


def test_logs_of_a_failed_start_hold_what_gym_said(startup_timeout: Run) -> None:
    logs = startup_timeout.facts["nhx logs"]
    assert "impatient-evaluator-1/agent-evaluate" in logs
    assert "impatient-host-0-1/gym-host" in logs


def test_a_log_that_was_followed_is_the_one_that_is_read_afterwards(startup_timeout: Run) -> None:
    evaluator = "impatient-evaluator-1/agent-evaluate"
    _, _, rest = startup_timeout.facts["nhx logs"].partition(f"==> {evaluator} (")
    written = rest.partition("\n==> ")[0].splitlines()[1:]
    followed = [line.partition(" | ") for line in startup_timeout.facts["followed"].splitlines()]
    assert [text for source, _, text in followed if source == evaluator] == written != []


def test_logs_of_a_stopped_gate_name_what_it_reached(open_network: Run) -> None:
    logs = open_network.facts["nhx logs"]
    assert "open-host-0-1/sandbox-gate" in logs
    assert "evaluator-canary" in logs


def test_the_evaluators_log_is_there_though_its_pod_was_told_to_end(open_network: Run) -> None:
    """While the pod ends it is the pod's own, and afterwards the one that is kept with the results."""
    logs = open_network.facts["nhx logs"]
    kept, own = "==> results of open/evaluator.log (kept with them) <==", "==> open-evaluator-1/agent-evaluate ("
    _, found, rest = logs.partition(kept if kept in logs else own)
    assert found and "open" in rest


def test_a_bundle_in_a_bucket_is_downloaded_as_it_lies_there(object_store: Run) -> None:
    results = object_store.status["results"]
    assert results["location"] == "s3://results/evals"
    assert results["path"].startswith(f"{object_store.job['metadata']['namespace']}/uploaded-")
    assert object_store.bundle
    assert tree_of(object_store.bundle) == object_store.facts["bucket"]
    assert {*BUNDLE, "provenance.json", "gym_run/rollouts.jsonl"} <= object_store.facts["bucket"].keys()


def test_the_buckets_key_is_in_no_file_no_log_and_no_status(object_store: Run) -> None:
    secret = object_store.facts["secret"]
    assert not [name for name, content in object_store.facts["bucket"].items() if secret.encode() in content]
    assert secret not in str(object_store.states) and secret not in str(object_store.logs)


def test_a_retained_claim_is_all_that_a_deleted_job_leaves(object_store: Run) -> None:
    assert object_store.facts["left"] == [object_store.facts["stays"]]


def test_a_deleted_jobs_files_and_logs_are_brought_by_its_name(object_store: Run) -> None:
    kept, bucket = object_store.facts["kept"], object_store.facts["bucket"]
    for name in (*BUNDLE, "gym_run/rollouts.jsonl"):
        assert kept[f"attempt-1/{name}"] == bucket[name], name
    assert "journal.jsonl" in kept
    evaluators, gyms = "results of uploaded/evaluator.log", "results of uploaded/attempt-1/gym_run/gym_env.log"
    remains = object_store.facts["remains"]
    assert evaluators in remains["logs"] and gyms in remains["logs"]
    assert evaluators not in remains["host's"] and gyms in remains["host's"]


def test_another_jobs_rollouts_on_a_claim_are_refused(object_store: Run) -> None:
    failed = condition(object_store.facts["another"], "Failed")
    assert failed["reason"] == "ResultsNotFresh" and object_store.job["metadata"]["uid"] in failed["message"]


@pytest.mark.parametrize("run", ["mcqa_gvisor", "mcqa_colocated"], indirect=True)
def test_the_bundle_names_the_images_by_digest_and_the_model_that_answered(run: Run) -> None:
    assert run.bundle
    document = strict_json((run.bundle / "provenance.json").read_text())
    assert {role: image["digest"] for role, image in document["images"].items()} == {
        role: digest for role, digest in run.status["ran"]["images"].items() if role in document["images"]
    }
    assert document["models"]["policy"]["answeredAs"] == {"scripted": run.status["usage"]["policy"]["calls"]}
    assert document["packages"]["gym"]["nemo-gym"] == "0.5.0"
