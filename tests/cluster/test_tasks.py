"""Datasets, tasksets and bounds, as a user meets them at the API server."""

import pytest

from cluster.world import condition
from nhx_gym_operator.api.wire.endpoints import Notice
from nhx_gym_operator.controller.kube import CLAIMS, PODS
from support.controller_values import outcome

ON_CLAIM = {"persistentVolumeClaim": {"claimName": "rows", "path": "sets/rows.jsonl"}}


@pytest.mark.parametrize("kind", ["dataset", "taskset"])
async def test_a_job_waits_for_the_claim_of_its_rows_by_name_and_mounts_it_read_only(world, operator, kind):
    await world.apply_job(tasks={kind: ON_CLAIM})
    job = await world.until_condition("Accepted", "ClaimNotFound")
    assert "PersistentVolumeClaim 'rows'" in condition(job, "Accepted")["message"]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await world._post(CLAIMS, {"metadata": {"name": "rows"}, "spec": claim})
    await world.until_phase("Starting")
    pod = await world.api.get(PODS, world.namespace, "mcqa-evaluator-1")
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "dataset"]
    assert volume["persistentVolumeClaim"] == {"claimName": "rows", "readOnly": True}


async def test_a_bound_above_the_operators_is_refused_with_both_numbers_in_condition_and_event(world, operating):
    with operating(limits={"maxRollouts": 100}):
        await world.apply_job(limits={"rollouts": 101})
        job = await world.until_phase("Failed")
        refused = condition(job, "Failed")
        assert refused["reason"] == "LimitTooHigh"
        assert "101" in refused["message"] and "limits.maxRollouts allows 100" in refused["message"]

        async def told():
            return any(event["reason"] == "LimitTooHigh" for event in await world.events())

        await world.until(told, "an event says so", world.events)
    assert await world.names(PODS) == []


async def test_a_thousand_task_ids_are_taken_and_one_more_is_not(world, operator):
    from nhx_gym_operator.controller.kube import ApiError

    ids = [f"{number:064x}" for number in range(1001)]
    dataset = {"bundled": "resources_servers/mcqa/data/example.jsonl"}
    with pytest.raises(ApiError) as refused:
        await world.apply_job(tasks={"dataset": dataset, "taskIds": ids})
    assert "spec.tasks.taskIds" in refused.value.message and "1000" in refused.value.message
    await world.apply_job(tasks={"dataset": dataset, "taskIds": ids[:1000]})
    await world.until_condition("Running", "PodsCreated")


async def test_collapsed_rows_are_a_condition_and_a_warning_event_of_a_job_that_succeeds(world, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    result = outcome()
    words = "5 rows, 1 distinct: equal rows are one task"
    result.progress.notices = [Notice(type="RowsCollapsed", reason="DuplicateRows", message=words)]
    await world.report_outcome(result)
    job = await world.until_phase("Succeeded")
    assert condition(job, "RowsCollapsed")["message"] == words and condition(job, "Degraded") is None

    async def told():
        return [event for event in await world.events() if event["reason"] == "DuplicateRows"]

    (event,) = await world.until(told, "an event says so", world.events)
    assert event["type"] == "Warning" and words in event["message"]
