"""`spec.cancel` against a real API server: what it does, and which fields may not change."""

import pytest

from cluster.world import condition
from nhx_gym_operator.api.conditions import RunReason
from nhx_gym_operator.api.job import CHANGEABLE, JobSpec
from nhx_gym_operator.controller.kube import JOBS, PODS, ApiError
from support.controller_values import outcome, spec


async def cancel(world, name="mcqa", value=True):
    await world._patch(JOBS, name, {"spec": {"cancel": value}})


async def test_a_running_job_ends_and_keeps_what_it_recorded(world, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    # With a node's name, a pod stays until its kubelet says that it ended; there is none here.
    await world.bind("mcqa-evaluator-1")
    await world.bind("mcqa-host-0-1")
    await world.report_running()
    await cancel(world)
    job = await world.until_condition("Running", "Cancelling")
    assert condition(job, "Failed") is None
    told = outcome("Failed", done=4, reason=RunReason.EVALUATOR_LOST, message="told to end")
    await world.report_outcome(told)
    await world.kill("mcqa-host-0-1")
    job = await world.until_phase("Cancelled")
    assert condition(job, "Failed")["reason"] == "Cancelled"
    assert job["status"]["progress"]["done"] == 4
    results = job["status"]["results"]
    assert (results["location"], results["path"]) == ("persistentVolumeClaim/mcqa-results", "attempt-1")
    assert "PersistentVolumeClaim/mcqa-results" in await world.children()


async def test_pods_that_no_node_runs_go_at_once(world, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    await cancel(world)
    await world.until_phase("Cancelled")
    await world.until_no_pods()


async def test_a_job_that_waits_is_cancelled_without_ever_having_pods(world, operator):
    await world.apply_job(tasks={"dataset": {"configMap": {"name": "rows", "key": "rows.jsonl"}}})
    await world.until_condition("Accepted", "ConfigMapNotFound")
    await cancel(world)
    await world.until_phase("Cancelled")
    assert await world.names(PODS) == []


async def test_a_job_that_was_cancelled_while_the_operator_was_away_is_ended_when_it_returns(world, operating):
    with operating():
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
    await cancel(world)
    with operating():
        await world.until_phase("Cancelled")
        await world.until_no_pods()


async def test_a_finished_job_ignores_it(world, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    await world.report_outcome(outcome())
    before = (await world.until_phase("Succeeded"))["status"]
    await cancel(world)
    await world.annotate(JOBS, "mcqa", "again")
    assert (await world.job())["status"] == before


async def test_it_cannot_be_taken_back(world):
    await world.apply_job()
    await cancel(world)
    with pytest.raises(ApiError) as refused:
        await cancel(world, value=False)
    assert "a job that was cancelled stays cancelled" in refused.value.message
    with pytest.raises(ApiError) as refused:
        await cancel(world, value=None)
    assert "a job that was cancelled stays cancelled" in refused.value.message


CHANGES = {
    "tasks": {"tasks": {"limit": 3}},
    "target": {"target": {"gym": {"numRepeats": 5}}},
    "target, deep down": {"target": {"gym": {"hydraParams": {"a": {"b": 2}}}}},
    "models": {"models": [*spec()["models"], {"name": "judge", "baseUrl": "http://judge/v1", "model": "m"}]},
    "results": {"results": {"persistentVolumeClaim": {"size": "2Gi"}}},
    "minCoverage": {"minCoverage": 0.5},
    "parallelism": {"parallelism": 9},
    "labels": {"labels": {"benchmark": "other"}},
    "managedBy": {"managedBy": "example.com/other"},
    "hosts": {"hosts": 2},
    "failFast": {"failFast": True},
    "failurePolicy": {"failurePolicy": {"rules": [{"action": "Ignore", "onLostAttempt": {"causes": ["Deleted"]}}]}},
    "retryFailed": {"retryFailed": 2},
    "limits": {"limits": {"calls": 5}},
    "egress": {"egress": {"allow": ["example.org"]}},
    "idleTimeoutSeconds": {"idleTimeoutSeconds": 60},
    "labels, the last one": {"labels": None},
}


def test_every_other_field_is_among_these_changes():
    fields = {field.alias for field in JobSpec.model_fields.values()}
    assert {change.partition(",")[0] for change in CHANGES} == fields - set(CHANGEABLE)


@pytest.mark.parametrize("change", CHANGES)
async def test_every_other_field_is_refused_by_its_name(world, change):
    await world.apply_job(labels={"benchmark": "mcqa"}, gym={"hydraParams": {"a": {"b": 1}}})
    with pytest.raises(ApiError) as refused:
        await world._patch(JOBS, "mcqa", {"spec": CHANGES[change]})
    field = change.partition(",")[0]
    assert f"{field} of a job cannot change; delete the job and apply it again" in refused.value.message
    assert f"spec.{field}" in refused.value.message
