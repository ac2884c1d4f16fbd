"""The fields that bound and hold up a job's life, against a real API server."""

import asyncio

import pytest

from cluster.world import condition
from nhx_gym_operator.api.conditions import RunReason
from nhx_gym_operator.api.wire.plans import EVALUATOR_PLAN_ENV
from nhx_gym_operator.controller.kube import CLAIMS, JOBS, PODS, ApiError
from support.controller_values import outcome, plan_of


async def change(world, name="mcqa", **fields):
    await world._patch(JOBS, name, {"spec": fields})


async def finish(world, name="mcqa", **fields):
    await world.apply_job(name, **fields)
    await world.until_condition("Running", "PodsCreated", name)
    await world.report_outcome(outcome(), f"{name}-evaluator-1")


async def until_gone(world, name="mcqa"):
    async def gone():
        return not await world.exists(JOBS, name)

    await world.until(gone, "the job is gone", lambda: world.job(name))


# activeDeadlineSeconds, startingDeadlineSeconds


async def test_a_job_that_takes_too_long_ends_with_what_it_recorded(world, operator):
    await world.apply_job(activeDeadlineSeconds=4)
    await world.until_condition("Running", "PodsCreated")
    # With a node's name, a pod stays until its kubelet says that it ended; there is none here.
    await world.bind("mcqa-evaluator-1")
    await world.report_running()
    await world.until_condition("Running", "DeadlineExceeded")
    await world.report_outcome(outcome("Failed", done=4, reason=RunReason.EVALUATOR_LOST, message="told to end"))
    job = await world.until_phase("Failed")
    assert condition(job, "Failed")["reason"] == "DeadlineExceeded"
    assert job["status"]["progress"]["done"] == 4
    assert "PersistentVolumeClaim/mcqa-results" in await world.children()


async def test_a_deadline_can_be_raised_while_the_job_runs(world, operator):
    await world.apply_job(activeDeadlineSeconds=5)
    await world.until_condition("Running", "PodsCreated")
    await change(world, activeDeadlineSeconds=3600)
    await asyncio.sleep(7)
    assert condition(await world.job(), "Failed") is None
    assert await world.names(PODS) == ["mcqa-evaluator-1", "mcqa-host-0-1"]


async def test_a_job_that_does_not_get_to_start_says_for_what_it_waited(world, operator):
    rows = {"dataset": {"configMap": {"name": "rows", "key": "rows.jsonl"}}}
    await world.apply_job(tasks=rows, startingDeadlineSeconds=3)
    job = await world.until_phase("Failed")
    failed = condition(job, "Failed")
    assert failed["reason"] == "StartingDeadlineExceeded"
    assert "ConfigMap 'rows'" in failed["message"]


# backoffLimit


async def test_a_lost_attempt_is_followed_by_another_one_after_its_pause(world, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    await world.remove(PODS, "mcqa-evaluator-1")
    job = await world.until_condition("Running", "EvaluatorLost")
    assert job["status"]["lostAttempts"] == 1 and "nextAttemptTime" in job["status"]
    assert await world.names(PODS) in ([], ["mcqa-host-0-1"])
    await world.until_pods("mcqa-evaluator-2", "mcqa-host-0-2")


async def test_an_operator_that_starts_again_counts_no_loss_twice(world, operating):
    with operating():
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        await world.remove(PODS, "mcqa-evaluator-1")
        await world.until_condition("Running", "EvaluatorLost")
    with operating():
        await world.until_pods("mcqa-evaluator-2")
        await world.until_condition("Running", "PodsCreated")
        assert (await world.job())["status"]["lostAttempts"] == 1


async def test_with_a_limit_of_zero_the_first_loss_ends_the_job(world, operator):
    await world.apply_job(backoffLimit=0)
    await world.until_condition("Running", "PodsCreated")
    await world.remove(PODS, "mcqa-evaluator-1")
    job = await world.until_phase("Failed")
    assert condition(job, "Failed")["reason"] == "BackoffLimitExceeded"
    await world.until_no_pods()


# retryFailed, failurePolicy


def rules(*entries):
    return {"rules": [{"action": action, "onLostAttempt": {"causes": [cause]}} for action, cause in entries]}


async def test_what_a_job_says_of_failed_rollouts_is_told_to_its_evaluator_and_cannot_change(world, operator):
    policy = {"rules": [{"action": "FailJob", "onRollout": {"classes": ["model", "legitimate"]}}]}
    await world.apply_job(retryFailed=2, failurePolicy=policy)
    await world.until_condition("Running", "PodsCreated")
    plan = plan_of(await world.api.get(PODS, world.namespace, "mcqa-evaluator-1"), "agent-evaluate", EVALUATOR_PLAN_ENV)
    told = {"place": "spec.failurePolicy.rules[0]", "action": "FailJob", "classes": ["model", "legitimate"]}
    assert (plan["retry_failed"], plan["rollout_rules"]) == (2, [told])
    for changed in ({"retryFailed": 3}, {"failurePolicy": rules(("Count", "Killed"))}):
        with pytest.raises(ApiError, match=f"{next(iter(changed))} of a job cannot change"):
            await change(world, **changed)


async def test_a_loss_by_a_cause_that_is_ignored_is_followed_by_another_attempt_and_does_not_count(world, operator):
    await world.apply_job(backoffLimit=0, failurePolicy=rules(("FailJob", "OOMKilled"), ("Ignore", "Deleted")))
    await world.until_condition("Running", "PodsCreated")
    await world.remove(PODS, "mcqa-evaluator-1")
    job = await world.until_condition("Running", "EvaluatorLost")
    assert job["status"]["ignoredAttempts"] == 1 and "lostAttempts" not in job["status"]
    assert "spec.failurePolicy.rules[1] ignores Deleted" in condition(job, "Running")["message"]
    await world.until_pods("mcqa-evaluator-2", "mcqa-host-0-2")


async def test_a_loss_by_a_cause_that_is_final_ends_the_job(world, operator):
    await world.apply_job(failurePolicy=rules(("FailJob", "OOMKilled")))
    await world.until_condition("Running", "PodsCreated")
    out_of_memory = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    await world.report("mcqa-evaluator-1", {"agent-evaluate": out_of_memory}, phase="Failed")
    failed = condition(await world.until_phase("Failed"), "Failed")
    assert failed["reason"] == "FailurePolicy" and "lost by OOMKilled" in failed["message"]

    async def only_the_ended_one():
        return await world.names(PODS) == ["mcqa-evaluator-1"]

    await world.until(only_the_ended_one, "its host is gone", lambda: world.names(PODS))


# managedBy


async def test_a_job_of_another_controller_is_left_alone(world, operator):
    await world.apply_job(managedBy="example.com/other")
    await world.apply_job("ours", managedBy="evals.nhx.io/nhx-gym-operator")
    await world.until_condition("Running", "PodsCreated", "ours")
    await world.annotate(JOBS, "mcqa", "look")
    await asyncio.sleep(1)
    assert "status" not in await world.job()
    assert {name.rpartition("/")[2].partition("-")[0] for name in await world.children()} == {"ours"}


# suspend


async def test_a_job_that_was_applied_suspended_gets_its_pods_when_it_is_resumed(world, operator):
    await world.apply_job(suspend=True)
    job = await world.until_phase("Suspended")
    assert "startTime" not in job["status"] and await world.children() == {}
    await change(world, suspend=False)
    job = await world.until_phase("Starting")
    assert condition(job, "Suspended")["reason"] == "JobResumed" and job["status"]["attempt"] == 1


async def test_a_running_job_is_suspended_with_what_it_recorded_and_goes_on_from_there(world, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    await world.bind("mcqa-evaluator-1")
    await world.bind("mcqa-host-0-1")
    await world.report_running()
    claim = await world.uid(CLAIMS, "mcqa-results")
    await change(world, suspend=True)
    await world.until_condition("Suspended", "Suspending")
    await world.report_outcome(outcome("Failed", done=4, reason=RunReason.EVALUATOR_LOST, message="told to end"))
    await world.kill("mcqa-host-0-1")
    job = await world.until_phase("Suspended")
    assert job["status"]["progress"]["done"] == 4 and "startTime" not in job["status"]
    await world.kill("mcqa-evaluator-1")
    await change(world, suspend=False)
    await world.until_pods("mcqa-evaluator-2", "mcqa-host-0-2")
    assert await world.uid(CLAIMS, "mcqa-results") == claim
    await world.until_phase("Starting")


async def test_a_suspended_job_costs_an_operator_that_starts_again_no_write(world, operating):
    with operating():
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        await change(world, suspend=True)
        job = await world.until_phase("Suspended")
    with operating():
        await asyncio.sleep(3)
        assert (await world.job())["metadata"]["resourceVersion"] == job["metadata"]["resourceVersion"]
        assert await world.names(PODS) == []


async def test_a_job_whose_records_would_be_lost_goes_on_and_says_so(world, operator):
    await world.apply_job(results={"emptyDir": {}})
    await world.until_condition("Running", "PodsCreated")
    await world.bind("mcqa-evaluator-1")
    await world.report_running()
    await change(world, suspend=True)
    await world.until_condition("Suspended", "ResultsWouldBeLost", status="False")
    assert await world.names(PODS) == ["mcqa-evaluator-1", "mcqa-host-0-1"]
    await change(world, suspend=False)
    await world.until_condition("Suspended", "JobResumed")


# ttlSecondsAfterFinished


async def test_a_job_that_has_ended_is_deleted_with_all_that_is_its_own(world, operator):
    await finish(world, ttlSecondsAfterFinished=1)
    await until_gone(world)

    async def nothing():
        return not await world.children()

    await world.until(nothing, "everything of the job is gone", world.children)


async def test_a_claim_that_is_to_stay_outlives_the_job_that_was_deleted_for_its_age(world, operator):
    retained = {"persistentVolumeClaim": {"size": "1Gi", "retention": "Retain"}}
    await finish(world, results=retained, ttlSecondsAfterFinished=0)
    await until_gone(world)
    (claim,) = await world.names(CLAIMS)
    assert claim.startswith("mcqa-results-")


async def test_how_long_it_stays_can_be_said_after_its_end(world, operator):
    await finish(world, ttlSecondsAfterFinished=3600)
    await world.until_phase("Succeeded")
    await change(world, ttlSecondsAfterFinished=0)
    await until_gone(world)
