"""Killed between any two of its writes, an operator is followed by one that brings the job to the same end."""

import asyncio
from itertools import count

import pytest

from cluster.lives import JOB, Fault, FaultKind, Life, ShortLived
from cluster.world import World
from support.controller_values import TOLD_TO_END, outcome

AT_ONCE = 6
"""Lives that are lived side by side."""
_numbers = count(1)


async def sandboxed(life):
    await life.apply()
    await life.start()
    await life.end(outcome())
    await life.later(90)
    await life.end_told()


async def colocated(life):
    await life.apply()
    await life.start()
    await life.end(outcome(), pod="gym-tasks")


async def degraded(life):
    await life.apply(results={"emptyDir": {}})
    await life.start()
    await life.end(outcome(done=9, degraded=["1 rollout failed"]))


async def failed(life):
    await life.apply()
    await life.start()
    await life.end(outcome("Failed", done=0, message="the model refused every call"))
    await life.later(90)
    await life.end_told()


async def lost(life):
    """The evaluator's node goes, twice."""
    await life.apply()
    for attempt in (1, 2):
        await life.start()
        await life.lose_evaluator(attempt)
        await life.end_told()
        await life.later(60)
    await life.start()
    await life.end(outcome(), attempt=3)


async def lost_for_good(life):
    await life.apply(backoffLimit=0)
    await life.start()
    await life.lose_evaluator(1)
    await life.end_told()


async def host_lost(life):
    await life.apply()
    await life.start()
    await life.lose(f"{JOB}-host-0-1")
    await life.start()
    await life.end(outcome())


async def host_lost_for_good(life):
    """An operator that forgot a loss would make the host once more."""
    await life.apply(backoffLimit=1)
    await life.start()
    for _ in range(2):
        await life.lose(f"{JOB}-host-0-1")
        await life.start()
    await life.end_told()


async def suspended(life):
    await life.apply(suspend=True)
    await life.change(suspend=False)
    await life.start()
    await life.change(suspend=True)
    await life.world.report_outcome(TOLD_TO_END)
    await life.end_told()
    await life.change(suspend=False)
    await life.start()
    await life.end(outcome(), attempt=2)


async def cancelled(life):
    await life.apply()
    await life.start()
    await life.change(cancel=True)
    await life.world.report_outcome(TOLD_TO_END)
    await life.end_told()


async def too_long(life):
    await life.apply(activeDeadlineSeconds=600)
    await life.start()
    await life.later(700)
    await life.world.report_outcome(TOLD_TO_END)
    await life.end_told()


async def expired(life):
    await life.apply(ttlSecondsAfterFinished=30)
    await life.start()
    await life.end(outcome(), pod="gym-tasks")
    await life.later(40)
    await life.end_told()


SCRIPTS = (sandboxed, lost, host_lost, suspended, cancelled, colocated, expired)
RARER = (degraded, failed, lost_for_good, host_lost_for_good, too_long)
LIVES = {script.__name__: script for script in SCRIPTS + RARER}
SETTINGS = {name: {"sandbox": {"mode": "Disabled"}} for name in ("colocated", "expired")}
DAILY = pytest.mark.parametrize("live", [script.__name__ for script in SCRIPTS], indirect=True)
NIGHTLY = pytest.mark.parametrize("live", LIVES, indirect=True)


@pytest.fixture
def live(request, world):
    """Lives a life with a fault, from the job's creation to the end, in a namespace of its own."""

    async def run(fault=None):
        """Its writes, and what is left of it."""
        namespace = World(world.api, f"{world.namespace}-{next(_numbers)}")
        await namespace.create_namespace()
        life = Life(namespace, fault, **SETTINGS.get(request.param, {}))
        try:
            await LIVES[request.param](life)
            return life.writes, await life.result()
        finally:
            await life.clear()

    return run


async def same_end(live, faults):
    """`faults` makes them from the writes of a life that none disturbs."""
    whole, expected = await live()
    limit = asyncio.Semaphore(AT_ONCE)

    async def check(fault):
        async with limit:
            _, result = await live(fault)
        other = {path for path in expected.keys() | result.keys() if expected.get(path) != result.get(path)}
        shown = {path: (expected.get(path), result.get(path)) for path in sorted(other)}
        assert not shown, f"{fault} of {whole}"

    async with asyncio.TaskGroup() as tasks:
        for fault in faults(whole):
            tasks.create_task(check(fault))


def moments(writes):
    """Numbers of the writes before which an operator may be killed. Of several events in a row one is enough: they
    change nothing that anybody decides by."""
    events = [write.endswith("/events") for write in writes]
    return [number + 1 for number in range(len(writes)) if not (number and events[number] and events[number - 1])]


async def killed_anywhere(live):
    await same_end(live, lambda writes: [Fault(FaultKind.KILLED, number) for number in moments(writes)])


@DAILY
async def test_whichever_write_is_its_last_the_end_is_the_same(live):
    await killed_anywhere(live)


@pytest.mark.nightly
@pytest.mark.parametrize("live", [script.__name__ for script in RARER], indirect=True)
async def test_so_it_is_for_rarer_lives(live):
    await killed_anywhere(live)


@DAILY
async def test_operators_that_never_live_for_long_bring_a_job_to_its_end_together(live):
    # Two Secrets and a pod, which the next one then finds.
    await same_end(live, lambda _: [ShortLived(4)])


@NIGHTLY
@pytest.mark.nightly
@pytest.mark.parametrize("kind", [FaultKind.REQUEST_LOST, FaultKind.ANSWER_LOST])
async def test_whichever_write_fails_the_end_is_the_same(live, kind):
    await same_end(live, lambda writes: [Fault(kind, number) for number in moments(writes)])
