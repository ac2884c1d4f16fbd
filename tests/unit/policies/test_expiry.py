"""`spec.ttlSecondsAfterFinished`: when a job that has ended is deleted."""

import pytest

from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.observation import DeleteJob
from support.controller_values import (
    NOW,
    UID,
    accepted_status,
    after,
    condition,
    finished_evaluator,
    host,
    job,
    observe,
    outcome,
    running,
    workload,
)

ENDED = "2026-11-29T12:00:00Z"
DONE = finished_evaluator(workload(), outcome(), at=ENDED)


def finished(final="Complete", *, pods=(DONE,), **spec):
    conditions = [condition(final, True, "AllRolloutsRecorded")]
    status = accepted_status(phase="Succeeded", completionTime=ENDED, conditions=conditions)
    metadata = {"resourceVersion": "7"}
    return observe(job(status=status, metadata=metadata, **spec), workload(), pods=pods)


@pytest.mark.parametrize("final", ["Complete", "Failed"])
def test_a_job_goes_so_many_seconds_after_its_end_however_it_ended(final):
    job = finished(final, ttlSecondsAfterFinished=60)
    early = decide(job, after(59))
    assert (early.actions, early.requeue_after) == ((), pytest.approx(1))
    assert decide(job, after(60)).actions == (DeleteJob("team", "mcqa", UID, "7"),)


def test_zero_is_at_once():
    assert decide(finished(ttlSecondsAfterFinished=0), NOW).actions == (DeleteJob("team", "mcqa", UID, "7"),)


def test_without_it_a_job_stays_for_ever():
    decision = decide(finished(), after(10**9))
    assert (decision.actions, decision.requeue_after) == ((), None)


def test_what_is_due_first_is_looked_at_first():
    at_work = host(workload(), states={"gym-host": running()}, phase="Running")
    decision = decide(finished(pods=(DONE, at_work), ttlSecondsAfterFinished=3600), NOW)
    assert decision.requeue_after == pytest.approx(60), "the host's grace"


def test_the_status_of_the_end_stays_as_it_is():
    job = finished(ttlSecondsAfterFinished=0)
    assert decide(job, NOW).status == job.job.status.to_dict()


def test_a_job_that_runs_is_not_deleted():
    running_job = job(status=accepted_status(), ttlSecondsAfterFinished=0)
    assert not [action for action in decide(observe(running_job), NOW).actions if isinstance(action, DeleteJob)]
