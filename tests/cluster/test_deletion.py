"""Jobs that are being deleted, whoever holds up their end: pods stop at once, and nothing is made any more."""

import asyncio
import json

import pytest

from cluster.control_plane import audit_log
from cluster.world import versions
from nhx_gym_operator.controller.kube import JOBS, PODS

PAIR = ("mcqa-evaluator-1", "mcqa-host-0-1")
HELD = {"finalizers": ["example.com/held"]}


async def started(world, name="mcqa", **changes):
    await world.apply_job(name, **changes)
    await world.until_condition("Running", "PodsCreated", name)
    for pod in await world.names(PODS):
        await world.bind(pod)
    # With a node, a pod stays until its kubelet has ended it. What the operator says of that is said then.
    await asyncio.sleep(1)
    return await world.job(name)


async def waiting(world, name="mcqa", **changes):
    """A job that would be given pods once its rows come. Events follow the status that they tell of."""
    rows = {"dataset": {"configMap": {"name": "rows", "key": "rows.jsonl"}}}
    await world.apply_job(name, tasks=rows, **changes)
    await world.until_condition("Accepted", "ConfigMapNotFound", name)

    async def told():
        return "ConfigMapNotFound" in {event["reason"] for event in await world.events(name)}

    await world.until(told, "an event tells what is missing", lambda: world.events(name))


@pytest.fixture
def written(kubeconfig, rights, world):
    """What the operator has written here since a mark; without one, a mark."""

    def since(mark=None):
        if mark is None:
            return rights.mark()
        with audit_log(kubeconfig).open("rb") as log:
            log.seek(mark)
            entries = [json.loads(line) for line in log.read().splitlines()]
        return [
            f"{entry['verb']} {entry['requestURI'].partition('?')[0]}"
            for entry in entries
            if entry["verb"] not in ("get", "list", "watch") and entry["objectRef"].get("namespace") == world.namespace
        ]

    return since


async def told_to_end(world):
    """Whether every pod was told to end; with a node, it is there until its kubelet has ended it."""
    pods = (await world.api.list(PODS, world.namespace))["items"]
    return len(pods) == 2 and all("deletionTimestamp" in pod["metadata"] for pod in pods)


@pytest.mark.parametrize("metadata", [None, HELD], ids=["no finalizer", "somebody's finalizer"])
async def test_a_foreground_deletion_stops_the_pods_at_once_and_makes_and_writes_nothing(
    world, operator, written, metadata
):
    job = await started(world, metadata=metadata)
    mark = written()
    await world.delete_job(propagation="Foreground")
    await world.until(lambda: told_to_end(world), "the pods were told to end", seconds=10)
    for pod in await world.names(PODS):
        await world.kill(pod)
    if metadata:
        await asyncio.sleep(3)
        left = await world.job()
        assert "deletionTimestamp" in left["metadata"]
        assert left["status"] == job["status"]
        assert await world.names(PODS) == []
        await world.set_finalizers("mcqa", [])

    async def nothing():
        return not await world.children() and not await world.exists(JOBS, "mcqa")

    await world.until(nothing, "everything is gone", world.children)
    # The garbage collector may have been faster.
    assert set(written(mark)) <= {f"delete /api/v1/namespaces/{world.namespace}/pods/{pod}" for pod in PAIR}


async def test_a_job_that_is_held_stays_as_it_is_also_for_an_operator_that_starts_again(world, operating, written):
    with operating():
        await started(world, metadata=HELD)
        await world.delete_job()
        await world.until(lambda: told_to_end(world), "the pods were told to end", seconds=10)
    for pod in PAIR:
        await world.kill(pod)
    before, mark = versions(await world.children()), written()
    with operating():
        await asyncio.sleep(3)
        assert versions(await world.children()) == before
    assert written(mark) == []
    await world.set_finalizers("mcqa", [])


async def test_a_job_that_waits_and_is_deleted_is_never_given_pods(world, operator, written):
    await waiting(world, metadata=HELD)
    mark = written()
    await world.delete_job()
    await world.create_config_map("rows", **{"rows.jsonl": "{}"})
    # A job that waits for its inputs looks every five seconds.
    await asyncio.sleep(8)
    assert await world.children() == {} and written(mark) == []
    await world.set_finalizers("mcqa", [])


async def test_nothing_is_written_into_a_namespace_that_ends(world, operating, written):
    """Not for a job that has pods, and not for one that waits and would get them."""
    with operating(watchNamespaces=[]):
        await started(world, metadata=HELD)
        await waiting(world, "waits", metadata=HELD)
        await world.delete_namespace()

        # Pods are told to end before anything else is: the job is there still when they are gone.
        await world.until(lambda: told_to_end(world), "the pods were told to end", seconds=20)
        mark = written()
        for pod in PAIR:
            await world.kill(pod)
        await asyncio.sleep(8)
        assert written(mark) == []
        assert await world.names(PODS) == []
        for name in ("mcqa", "waits"):
            await world.set_finalizers(name, [])
