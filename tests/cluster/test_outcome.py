"""How a job ends whose evaluator's pod nobody can ask any more, against a real API server."""

from cluster.world import condition
from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.controller.kube import PODS
from support.controller_values import outcome

READER = "mcqa-outcome-1"


async def lose(world, operating, **fields):
    """A job whose evaluator was deleted, in whatever state, while no operator ran."""
    with operating():
        await world.apply_job(**fields)
        await world.until_condition("Running", "PodsCreated")
        await world.report_running()
    await world.remove(PODS, "mcqa-evaluator-1")


async def report_reading(world, code, message):
    ended = {
        "exitCode": code,
        "message": message,
        "startedAt": "2026-11-29T12:00:00Z",
        "finishedAt": "2026-11-29T12:00:01Z",
    }
    await world.report(READER, {"read-outcome": {"terminated": ended}}, "Failed" if code else "Succeeded")


async def test_an_outcome_on_the_claim_is_the_jobs_and_no_other_attempt_is_made(world, operating):
    await lose(world, operating)
    with operating():
        await world.until_condition("Running", "ReadingOutcome")
        await world.until_pods(READER)
        await report_reading(world, 0, encode_outcome(outcome()).decode())
        job = await world.until_phase("Succeeded")
        assert job["status"]["attempt"] == 1 and job["status"]["coverage"] == 1.0
        assert "lostAttempts" not in job["status"]
        assert await world.names(PODS) == [READER]


async def test_a_journal_without_an_outcome_is_gone_on_with(world, operating):
    await lose(world, operating)
    with operating():
        await world.until_pods(READER)
        await report_reading(world, 3, "its results hold what it recorded, and no outcome")
        await world.until_pods("mcqa-evaluator-2", "mcqa-host-0-2")
        job = await world.until_condition("Running", "PodsCreated")
        assert (job["status"]["attempt"], job["status"]["lostAttempts"]) == (2, 1)


async def test_a_reader_that_somebody_removes_is_made_again(world, operating):
    await lose(world, operating)
    with operating():
        await world.until_pods(READER)
        first = await world.uid(PODS, READER)
        await world.remove(PODS, READER)

        async def another():
            return await world.uid(PODS, READER) not in (None, first)

        await world.until(another, "another reader is there")
        assert condition(await world.job(), "Failed") is None


async def test_an_empty_dir_that_went_with_its_evaluator_fails_the_job_by_a_reason_of_its_own(world, operating):
    await lose(world, operating, results={"emptyDir": {}})
    with operating():
        job = await world.until_phase("Failed")
        failed = condition(job, "Failed")
        assert failed["reason"] == "ResultsLost" and "spec.results.persistentVolumeClaim" in failed["message"]
        await world.until_no_pods()
