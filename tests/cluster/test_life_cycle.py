"""The fields that bound and hold up a job's life, against a real API server."""

from nhx_gym_operator.controller.kube import CLAIMS, JOBS
from support.controller_values import outcome


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
