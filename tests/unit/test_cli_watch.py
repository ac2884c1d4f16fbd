"""`kubectl nhx watch`: what is told while a job goes on, and how it ends."""

import json

import pytest
from rich.console import Console

from nhx_gym_operator.cli import watch
from nhx_gym_operator.cli.exits import ExitCode
from nhx_gym_operator.cli.podwords import words_of
from nhx_gym_operator.client.jobs import Job
from support.cli_values import call, condition, evaluator, host, job

RUNS = [condition("Running", True, "Collecting", "rollouts are being collected")]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.watch.POLL_SECONDS", 0.01)


def running(done, **more):
    progress = {"done": done, "failed": 0, "total": 10, "summary": f"{done}/10"}
    return {"phase": "Running", "progress": progress, "conditions": RUNS, **more}


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        ("Succeeded", ExitCode.DONE),
        ("Failed", ExitCode.JOB_FAILED),
        ("Cancelled", ExitCode.JOB_CANCELLED),
    ],
)
def test_the_exit_code_says_how_the_job_ended(cluster, phase, code):
    cluster.write("jobs", [job(phase="Running")])
    cluster.write("script", {"story": [{"phase": phase}]})

    assert call("watch", "mcqa").exit_code == code


@pytest.mark.parametrize(
    ("phase", "command"), [("Succeeded", "results"), ("Failed", "explain"), ("Cancelled", "explain")]
)
def test_the_end_points_at_what_helps_then(cluster, phase, command):
    """A failed job may have aggregates too, and they are not what its reader needs first."""
    cluster.write("jobs", [job(phase=phase, aggregates=[{"name": "gym_reward.reward"}])])

    assert f"kubectl nhx {command} mcqa" in call("watch", "mcqa").stderr


def test_a_log_gets_one_line_for_each_change(cluster):
    cluster.write("jobs", [job(**running(0))])
    cluster.write("script", {"story": [{}, running(4, reward="0.50"), {}, {"phase": "Succeeded", "conditions": []}]})

    lines = call("watch", "mcqa").stdout.splitlines()

    assert [line.split()[0] for line in lines] == ["Running", "Running", "Succeeded"]
    assert "4/10  reward 0.50  rollouts are being collected" in lines[1]


def test_json_is_one_value_a_line_and_says_which_pod_does_what(cluster):
    cluster.write("jobs", [job(**running(4))])
    cluster.write("pods", [host(states={"gym-host": {"running": {}}}), evaluator()])
    cluster.write("script", {"story": [{}, {"phase": "Succeeded"}]})

    first, last = [json.loads(line) for line in call("watch", "mcqa", "--output=json").stdout.splitlines()]

    assert first["progress"]["summary"] == "4/10" and last["phase"] == "Succeeded"
    assert [(pod["role"], pod["doing"]) for pod in first["pods"]] == [
        ("evaluator", "has ended"),
        ("gym-host", "starts Gym"),
    ]


def test_time_that_is_up_is_told_apart_from_a_job_that_failed(cluster):
    cluster.write("jobs", [job(**running(4))])

    result = call("watch", "mcqa", "--timeout=0.05")

    assert result.exit_code == ExitCode.TIMEOUT
    assert "kubectl nhx explain mcqa --namespace evals" in result.output


def test_a_job_that_is_deleted_meanwhile_is_not_found(cluster):
    cluster.write("jobs", [job(**running(4))])
    cluster.write("script", {"story": [{}, "gone"]})

    result = call("watch", "mcqa")

    assert result.exit_code == ExitCode.NOT_FOUND and "was deleted while it was watched" in result.output


def test_a_cluster_that_is_away_for_a_while_is_asked_again(cluster):
    cluster.write("jobs", [job(**running(4))])
    cluster.write("script", {"story": [{}, "away", "away", {"phase": "Succeeded"}]})

    result = call("watch", "mcqa")

    assert result.exit_code == ExitCode.DONE and "asking again" in result.stderr


def test_a_cluster_that_stays_away_is_given_up(cluster, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.client.patience.PATIENCE_SECONDS", 0.0)
    cluster.write("jobs", [job(**running(4))])
    cluster.write("script", {"story": [{}, "away", "away"]})

    assert call("watch", "mcqa").exit_code == ExitCode.ERROR


def test_a_log_that_a_condition_quotes_does_not_break_the_one_line_of_a_change(cluster):
    quoted = [condition("Failed", True, "HostStartupFailed", "Gym did not start; it said:\n  line 1\n  line 2")]
    cluster.write("jobs", [job(phase="Failed", conditions=quoted)])

    (line,) = call("watch", "mcqa").stdout.splitlines()

    assert line.endswith("Gym did not start; it said: …")


def test_a_terminal_shows_bar_reward_failures_and_pods():
    body = job(**running(4, reward="0.50"))
    body["status"]["progress"] |= {"failed": 1, "summary": "5/10"}
    console = Console(record=True, width=100, force_terminal=True, color_system=None)
    view = watch.View(Job(body), words_of(Job(body), [evaluator(states={"agent-evaluate": {"running": {}}})]))

    console.print(watch.picture(view))

    shown = console.export_text()
    assert "5/10, reward 0.50, 1 failed" in shown
    assert "━" in shown
    assert "mcqa-evaluator-1  evaluator  collects rollouts" in shown


PODS = {
    "a pod without a node": (
        {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: too small"}]},
        "waits for a node: 0/1 nodes: too small",
        True,
    ),
    "an image that does not come": (
        {"containerStatuses": [{"name": "agent-evaluate", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
        "agent-evaluate cannot start: ImagePullBackOff",
        True,
    ),
    "a container that was killed": (
        {
            "containerStatuses": [
                {"name": "agent-evaluate", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
            ]
        },
        "agent-evaluate ended with exit code 137 (OOMKilled)",
        True,
    ),
    "one that is not yet there": (
        {"containerStatuses": [{"name": "agent-evaluate", "state": {"waiting": {"reason": "ContainerCreating"}}}]},
        "is being set up on its node: image and volumes",
        False,
    ),
    "an eviction": (
        {"phase": "Failed", "reason": "Evicted", "message": "low on disk"},
        "failed: Evicted: low on disk",
        True,
    ),
}


@pytest.mark.parametrize("case", PODS)
def test_a_pod_is_described_by_what_it_does_or_lacks(case):
    status, doing, trouble = PODS[case]
    pod = evaluator()
    pod["status"] = status
    (words,) = words_of(Job(job(phase="Starting")), [pod])
    assert (words.doing, words.trouble) == (doing, trouble)
