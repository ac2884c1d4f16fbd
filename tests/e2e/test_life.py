"""What may happen to a job: inputs that come late, children that vanish, a start that takes too long, its deletion."""

from __future__ import annotations

import json
import re

import pytest

from e2e.manifests import FLAKY_ROW, MCQA_TASKS, REPEATS
from e2e.runs import Run, rows_of
from e2e.scenarios import LIMIT, TWO_HOSTS_REPEATS
from support.clock import seconds_between
from support.job_watch import condition, is_true

ROLLOUTS = MCQA_TASKS * REPEATS
KILLED = pytest.mark.parametrize("story", ["evaluator_killed", "evaluator_killed_colocated"])


def test_what_is_missing_is_named_one_after_the_other_and_the_job_goes_on_by_itself(missing_inputs: Run) -> None:
    reasons = [complaint["reason"] for complaint in missing_inputs.facts["asked"].values()]
    assert list(missing_inputs.facts["asked"]) == [
        "FileSet wordcheck",
        "ConfigMap wordcheck-environment",
        "ConfigMap wordcheck-rows",
        "Secret late-key",
    ]
    assert reasons == ["FileSetNotFound", "ConfigMapNotFound", "ConfigMapNotFound", "SecretNotFound"]
    assert missing_inputs.status["phase"] == "Succeeded"
    assert missing_inputs.status["progress"]["summary"] == f"{LIMIT}/{LIMIT}"
    assert missing_inputs.aggregates["gym_reward.reward"]["value"] == pytest.approx(1.0)


def test_children_that_were_deleted_by_hand_come_back(replaced_children: Run) -> None:
    came_back = replaced_children.facts["came_back"]
    assert came_back["networkpolicies"] == ["replaced-evaluator", "replaced-host"]
    assert came_back["services"] == ["replaced"]
    assert came_back["secrets"] == sorted(replaced_children.facts["secrets"])


def test_a_run_whose_pods_were_deleted_ends_with_the_same_numbers(replaced_children: Run, mcqa_runc: Run) -> None:
    assert replaced_children.status["attempt"] == 2
    assert replaced_children.status["progress"]["summary"] == f"{ROLLOUTS}/{ROLLOUTS}"
    values = {name: aggregate["value"] for name, aggregate in replaced_children.aggregates.items()}
    assert values == pytest.approx({name: aggregate["value"] for name, aggregate in mcqa_runc.aggregates.items()})


def test_no_rollout_is_recorded_twice(replaced_children: Run) -> None:
    lines = [json.loads(line) for line in replaced_children.facts["journal"].splitlines()]
    results = [line["record"] for line in lines if line["record"]["kind"] == "result"]
    assert len(results) == len({(result["task"], result["rollout"]) for result in results}) == ROLLOUTS
    assert replaced_children.bundle
    assert len(rows_of(replaced_children.bundle / "gym_run/rollouts.jsonl")) == ROLLOUTS


def test_no_rollout_that_was_recorded_is_paid_for_again(replaced_children: Run) -> None:
    """One call was under way when each of the two pods was deleted, and may have been made again."""
    assert replaced_children.facts["rollouts before"] >= 2
    calls = sum(count for row, count in replaced_children.facts["calls"].items() if row != "None")
    assert ROLLOUTS <= calls <= ROLLOUTS + 2


@KILLED
def test_an_evaluator_that_was_killed_midway_is_named_and_started_again_in_its_pod_and_its_host_goes_on(
    story: str, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(story)
    assert run.facts["rollouts before"] < ROLLOUTS and run.facts["seconds"] < 60
    assert run.facts["named"]["status"] == "False" and "exit code 137" in run.facts["named"]["message"]
    assert {pod["metadata"]["uid"] for pod in run.pods} == set(run.facts["before"])
    restarts = {s["name"]: s["restartCount"] for pod in run.pods for s in pod["status"]["containerStatuses"]}
    assert restarts.pop("agent-evaluate") == 1 and not any(restarts.values())
    assert run.status["attempt"] == 1 and "lostAttempts" not in run.status


@KILLED
def test_it_goes_on_from_what_it_had_recorded_and_ends_with_the_same_numbers(
    story: str, mcqa_runc: Run, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(story)
    assert run.status["progress"]["summary"] == f"{ROLLOUTS}/{ROLLOUTS}"
    values = {name: aggregate["value"] for name, aggregate in run.aggregates.items()}
    assert values == pytest.approx({name: aggregate["value"] for name, aggregate in mcqa_runc.aggregates.items()})
    left = re.search(rf"(\d+) of {ROLLOUTS} rollouts are to be collected", run.logs["agent-evaluate"])
    assert left and int(left[1]) <= ROLLOUTS - run.facts["rollouts before"]


def test_an_evaluator_that_was_killed_midway_has_recorded_each_rollout_once(evaluator_killed: Run) -> None:
    lines = [json.loads(line) for line in evaluator_killed.facts["journal"].splitlines()]
    results = [line["record"] for line in lines if line["record"]["kind"] == "result"]
    assert len(results) == len({(result["task"], result["rollout"]) for result in results}) == ROLLOUTS


def test_a_job_of_two_hosts_that_loses_one_midway_has_each_rollout_once(two_hosts: Run) -> None:
    total = MCQA_TASKS * TWO_HOSTS_REPEATS
    assert two_hosts.facts["rollouts before"] < total
    assert two_hosts.status["progress"]["summary"] == f"{total}/{total}"
    assert two_hosts.aggregates["gym_reward.reward"]["value"] == pytest.approx(0.8)
    assert two_hosts.aggregates["gym_reward.reward"]["count"] == total
    lines = [json.loads(line) for line in two_hosts.facts["journal"].splitlines()]
    results = [line["record"] for line in lines if line["record"]["kind"] == "result"]
    assert len(results) == len({(result["task"], result["rollout"]) for result in results}) == total


def test_a_lost_host_is_made_again_in_the_same_attempt_while_the_other_goes_on(two_hosts: Run) -> None:
    before, after, deleted = (two_hosts.facts[name] for name in ("before", "after", "deleted"))
    assert {name for name in before if after.get(name) != before[name]} == {deleted}
    assert two_hosts.status["attempt"] == 1 and "lostAttempts" not in two_hosts.status
    since_both = [s for s in two_hosts.states if s.get("status", {}).get("progress", {}).get("done", 0) >= 2]
    assert {s["status"]["hosts"]["summary"] for s in since_both} >= {"2/2", "1/2"}
    running = [s for s in since_both if is_true(s, "Running")]
    assert running and all(is_true(s, "SandboxReady") for s in running)


def test_both_hosts_ran_rollouts_and_their_logs_are_in_the_bundle(two_hosts: Run) -> None:
    assert two_hosts.bundle
    logs = {file.name: file.read_text() for file in (two_hosts.bundle / "gym_run").glob("gym_env*.log")}
    assert set(logs) == {"gym_env.log", "gym_env.host-1.log"} and all(logs.values())
    assert "SomeHostsReady" in {condition(state, "SandboxReady")["reason"] for state in two_hosts.states[5:]}


def test_a_suspended_job_goes_on_with_what_it_had_recorded_and_ends_with_the_same_numbers(
    suspended: Run, mcqa_colocated: Run
) -> None:
    assert suspended.facts["still running"] == [] and suspended.facts["rollouts before"] >= 2
    assert suspended.status["attempt"] == 2 and "lostAttempts" not in suspended.status
    lines = [json.loads(line) for line in suspended.facts["journal"].splitlines()]
    results = [line["record"] for line in lines if line["record"]["kind"] == "result"]
    assert len(results) == len({(result["task"], result["rollout"]) for result in results}) == ROLLOUTS
    values = {name: aggregate["value"] for name, aggregate in suspended.aggregates.items()}
    assert values == pytest.approx({name: aggregate["value"] for name, aggregate in mcqa_colocated.aggregates.items()})


def test_a_rollout_that_failed_is_run_again_alone_and_the_job_is_whole(retried: Run, mcqa_runc: Run) -> None:
    complete = condition(retried.job, "Complete")
    assert (complete["status"], complete["reason"]) == ("True", "AllRolloutsRecorded")
    assert retried.status["progress"]["summary"] == f"{ROLLOUTS}/{ROLLOUTS}" and retried.status["coverage"] == 1
    records = [json.loads(line)["record"] for line in retried.facts["journal"].splitlines()]
    (failure,) = [record for record in records if record["kind"] == "failure"]
    assert (failure["task"], failure["failure_class"]) == (FLAKY_ROW, "transient")
    results = [(record["task"], record["rollout"]) for record in records if record["kind"] == "result"]
    assert len(results) == len(set(results)) == ROLLOUTS and results[-1] == (failure["task"], failure["rollout"])
    calls = {row: count for row, count in retried.facts["calls"].items() if row != "None"}
    assert calls == {str(row): REPEATS + (row == FLAKY_ROW) for row in range(MCQA_TASKS)}
    values = {name: aggregate["value"] for name, aggregate in retried.aggregates.items()}
    assert values == pytest.approx({name: aggregate["value"] for name, aggregate in mcqa_runc.aggregates.items()})


def test_deleting_a_finished_job_leaves_nothing_behind(replaced_children: Run) -> None:
    assert replaced_children.facts["left"] == []


def test_deleting_a_starting_job_leaves_nothing_behind(deleted_job: dict[str, list[str]]) -> None:
    kinds = {child.partition("/")[0] for child in deleted_job["before"]}
    assert {"Pod", "Secret", "PersistentVolumeClaim", "NetworkPolicy"} <= kinds
    assert deleted_job["after"] == []


def test_a_start_that_takes_too_long_names_the_field(startup_timeout: Run) -> None:
    failed = condition(startup_timeout.job, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "StartupTimeout")
    assert "startupTimeoutSeconds" in failed["message"] and "5" in failed["message"]


def test_a_wrong_model_url_is_said_before_gym_is_up(startup_timeout: Run) -> None:
    doubt = condition(startup_timeout.job, "ModelInDoubt")
    assert (doubt["status"], doubt["reason"]) == ("True", "EndpointNotFound")
    assert "spec.models[name=policy].baseUrl" in doubt["message"] and "/v2" in doubt["message"]
    assert [
        state for state in startup_timeout.states if is_true(state, "ModelInDoubt") and not is_true(state, "Failed")
    ]


def test_the_startup_timeout_counts_from_the_launchers_start(startup_timeout: Run) -> None:
    """Not from the pod's: gate, image and scheduling come before."""
    host, *_ = startup_timeout.pod("gym-host")["status"]["containerStatuses"]
    state = host["state"].get("terminated") or host["state"]["running"]
    assert seconds_between(state["startedAt"], startup_timeout.status["completionTime"]) >= 4
