"""`kubectl nhx`: the bundle and the logs, on one's own machine."""

from __future__ import annotations

import pytest

from e2e.runs import Run, rows_of, strict_json

BUNDLE = ("run.json", "metadata.json", "summary.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "report.html")


@pytest.mark.parametrize("run", ["mcqa_gvisor", "mcqa_colocated", "replaced_children"], indirect=True)
def test_a_downloaded_bundle_is_the_sdks_with_gyms_own_files(run: Run) -> None:
    assert run.bundle
    assert not [name for name in BUNDLE if not (run.bundle / name).is_file()]
    assert (run.bundle / "gym_run/rollouts.jsonl").is_file()


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


def test_logs_of_a_stopped_gate_name_what_it_reached(open_network: Run) -> None:
    logs = open_network.facts["nhx logs"]
    assert "open-host-0-1/sandbox-gate" in logs
    assert "evaluator-canary" in logs
