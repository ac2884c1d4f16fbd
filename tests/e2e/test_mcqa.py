"""The same five questions, twice each, in every placement: known answers, so known numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from e2e.installations import COLOCATED, GVISOR, RUNC, SESSION_ANNOTATION
from e2e.manifests import MCQA_TASKS, REPEATS
from e2e.runs import Run, rows_of, strict_json
from e2e.sdk_alone import ANY_USER, SdkRun
from support import cluster

ROLLOUTS = MCQA_TASKS * REPEATS
EVERYWHERE = pytest.mark.parametrize("run", ["mcqa_gvisor", "mcqa_runc", "mcqa_colocated"], indirect=True)
# Role in the status: role of the pod, container.
RAN = {
    "Sandboxed": {
        "evaluator": ("evaluator", "agent-evaluate"),
        "gate": ("gym-host", "sandbox-gate"),
        "gymHost": ("gym-host", "gym-host"),
    },
    "Colocated": {"evaluator": ("colocated", "agent-evaluate")},
}
# What depends on how fast the machine is, and not on the answers.
TIMED = re.compile(r"latency|duration|seconds|_ms\b|time|per_sec|throughput", re.IGNORECASE)


@EVERYWHERE
def test_five_tasks_twice_succeed_with_the_known_reward(run: Run) -> None:
    status = run.status
    assert status["phase"] == "Succeeded"
    assert status["progress"] == {
        "done": ROLLOUTS,
        "failed": 0,
        "total": ROLLOUTS,
        "meanReward": 0.8,
        "summary": "10/10",
    }
    assert status["coverage"] == 1.0
    assert status["reward"] == "0.80"
    assert run.aggregates["gym_reward.reward"]["value"] == pytest.approx(0.8)
    assert run.aggregates["gym_reward.reward"]["count"] == ROLLOUTS
    assert run.aggregates["runner.gym.pass@1/accuracy"]["value"] == pytest.approx(80.0)


@EVERYWHERE
def test_the_bundle_holds_five_tasks_and_ten_trials(run: Run) -> None:
    assert run.bundle
    assert len(rows_of(run.bundle / "tasks.jsonl")) == MCQA_TASKS
    assert len(rows_of(run.bundle / "trials.jsonl")) == ROLLOUTS
    assert len(rows_of(run.bundle / "gym_run/rollouts.jsonl")) == ROLLOUTS


@EVERYWHERE
def test_the_bundle_holds_the_model_calls_of_every_rollout(run: Run) -> None:
    assert run.bundle
    captures = {file.name for file in (run.bundle / "gym_run/model_calls").iterdir()}
    assert captures == {f"{task}-{repeat}.capture.jsonl" for task in range(MCQA_TASKS) for repeat in range(REPEATS)}


@EVERYWHERE
def test_every_aggregate_equals_what_the_sdk_alone_computes(run: Run, sdk_run: SdkRun) -> None:
    assert run.bundle
    ours = _by_name(strict_json((run.bundle / "summary.json").read_text()))
    theirs = _by_name(sdk_run.summary)
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {name for name in ours if TIMED.search(name)}:
        assert ours[name] == pytest.approx(theirs[name], nan_ok=True), name


def test_gym_runs_under_any_user_of_group_0(sdk_run: SdkRun) -> None:
    """In the image of both, with a read-only root."""
    assert sdk_run.user == f"{ANY_USER}:0"
    assert _by_name(sdk_run.summary)["gym_reward.reward"]["mean"] == pytest.approx(0.8)


@EVERYWHERE
def test_the_status_shows_the_numbers_of_the_bundle(run: Run) -> None:
    assert run.bundle
    summary = _by_name(strict_json((run.bundle / "summary.json").read_text()))
    assert run.aggregates.keys() <= summary.keys()
    assert len(run.aggregates) + run.status.get("aggregatesDropped", 0) == len(summary)
    for name, aggregate in run.aggregates.items():
        headline = summary[name].get("value", summary[name].get("mean"))
        assert aggregate["value"] == pytest.approx(headline), name


@EVERYWHERE
def test_progress_only_grows_and_phases_come_in_order(run: Run) -> None:
    phases = [state.get("status", {}).get("phase") for state in run.states]
    order = ["Pending", "Staging", "Starting", "Running", "Succeeded"]
    seen = [phase for phase in dict.fromkeys(phases) if phase]
    assert seen == [phase for phase in order if phase in seen]
    assert {"Starting", "Succeeded"} <= set(seen)
    done = [state["status"]["progress"]["done"] for state in run.states if state.get("status", {}).get("progress")]
    assert done == sorted(done)


def test_a_run_that_takes_its_time_is_seen_running(mcqa_gvisor: Run) -> None:
    """Instant answers are all there before anybody looks."""
    running = [state["status"] for state in mcqa_gvisor.states if state.get("status", {}).get("phase") == "Running"]
    assert any(0 < status["progress"]["done"] < ROLLOUTS for status in running)
    assert all(status["hosts"] == {"ready": 1, "desired": 1, "summary": "1/1"} for status in running)


@EVERYWHERE
def test_the_status_names_the_image_digests_that_the_pods_ran(run: Run) -> None:
    named = {role: _sha(image) for role, image in run.status["ran"]["images"].items()}
    assert named == {role: _sha(run.image_id(*where)) for role, where in RAN[run.status["placement"]].items()}
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in named.values())


@EVERYWHERE
def test_every_pod_bears_the_administrators_annotation(run: Run) -> None:
    values = {pod["metadata"]["annotations"].get(SESSION_ANNOTATION) for pod in run.pods}
    assert len(values) == 1 and values != {None}


@EVERYWHERE
def test_a_real_gym_served_the_rollouts(run: Run) -> None:
    versions = run.status["ran"]["versions"]
    assert versions["nemo-gym"] == "0.5.0"
    assert versions["ray"]
    assert run.bundle
    colocated = run.status["placement"] == "Colocated"
    log = (run.bundle / "gym_run/gym_env.log").read_text() if colocated else run.logs["gym-host"]
    assert "mcqa" in log and "Uvicorn running" in log, log[-3000:]


@pytest.mark.parametrize("run", ["mcqa_gvisor", "mcqa_runc"], indirect=True)
def test_gym_runs_on_the_python_that_it_needs(run: Run) -> None:
    python = run.status["ran"]["versions"]["python"]
    assert tuple(int(part) for part in python.split(".")) >= (3, 13, 14)


@EVERYWHERE
def test_usage_is_what_the_model_server_charged(run: Run) -> None:
    usage = run.status["usage"]["policy"]
    assert usage["calls"] >= ROLLOUTS
    assert usage["inputTokens"] == 100 * usage["calls"]
    assert usage["outputTokens"] == 20 * usage["calls"]
    assert usage["totalTokens"] == usage["inputTokens"] + usage["outputTokens"]


def test_placement_is_what_each_installation_was_set_to(mcqa_gvisor: Run, mcqa_runc: Run, mcqa_colocated: Run) -> None:
    got = [
        (run.status["placement"], run.status.get("isolation"), run.status.get("runtimeClassName"))
        for run in (mcqa_gvisor, mcqa_runc)
    ]
    assert got == [("Sandboxed", "Kernel", "gvisor"), ("Sandboxed", "ContainerOnly", None)]
    assert mcqa_colocated.status["placement"] == "Colocated"
    assert [run.job["metadata"]["namespace"] for run in (mcqa_gvisor, mcqa_runc, mcqa_colocated)] == [
        GVISOR.jobs,
        RUNC.jobs,
        COLOCATED.jobs,
    ]


@pytest.mark.parametrize("run", ["inference_provider", "openai_model"], indirect=True)
def test_other_model_types_give_the_same_reward(run: Run) -> None:
    assert run.status["progress"]["summary"] == "10/10"
    assert run.aggregates["gym_reward.reward"]["value"] == pytest.approx(0.8)
    assert run.aggregates["runner.gym.pass@1/accuracy"]["value"] == pytest.approx(80.0)


def test_the_model_type_that_was_left_out_is_gyms_default(inference_provider: Run) -> None:
    spec = cluster.get("aej", "inference-provider", RUNC.jobs)["spec"]
    assert spec["target"]["gym"]["modelType"] == "inference_provider"


def _by_name(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {score["name"]: _numbers(score) for score in summary["scores"]["scores"]}


def _numbers(score: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in score.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _sha(image: str) -> str:
    return image.rpartition("sha256:")[2]
