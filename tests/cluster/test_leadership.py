"""Two operators and one Lease, against a real API server."""

from __future__ import annotations

import asyncio
import time

from cluster.world import versions
from nhx_gym_operator.controller.kube import LEASES, PODS

NAME = "op"
FAIL_OVER_SECONDS = 20.0
FROZEN_SECONDS = 25.0
"""Longer than the Lease lasts, so that the one that slept wakes up when the other one has acted."""
PAIR = ["mcqa-evaluator-1", "mcqa-host-0-1"]


def lease_of(world):
    return {"lease": {"name": NAME, "namespace": world.namespace}}


async def holder(world):
    if not await world.exists(LEASES, NAME):
        return None
    return (await world.api.get(LEASES, world.namespace, NAME))["spec"].get("holderIdentity")


async def until_holder(world, name, seconds=60.0):
    async def there():
        return await holder(world) == name

    await world.until(there, f"{name} holds the Lease", lambda: holder(world), seconds)


async def test_one_of_two_operators_acts_and_the_other_goes_on_where_it_stopped(world, operating):
    with operating(identity="a", **lease_of(world)) as first:
        await until_holder(world, "a")
        with operating(identity="b", **lease_of(world)):
            await world.apply_job()
            job = await world.until_phase("Starting")
            before = versions(await world.children())
            assert await holder(world) == "a"
            began = time.monotonic()
            await asyncio.to_thread(first.stop)
            stopped = time.monotonic()
            await until_holder(world, "b", 5.0)
            assert time.monotonic() - stopped < 5.0, f"stopping took {stopped - began:.1f} s"
            await world.apply_job("second")
            await world.until_phase("Starting", "second")
            after = versions(await world.children())
            assert {name: after.get(name) for name in before} == before, "nothing was made or changed twice"
            assert (await world.job())["metadata"]["resourceVersion"] == job["metadata"]["resourceVersion"]


async def test_an_operator_that_froze_is_followed_within_twenty_seconds_and_changes_nothing_when_it_wakes(
    world, operating
):
    with operating(identity="a", **lease_of(world)) as first:
        await until_holder(world, "a")
        with operating(identity="b", **lease_of(world)):
            froze = time.monotonic()
            first.freeze(FROZEN_SECONDS)
            await asyncio.sleep(0.5)
            await world.apply_job()
            await world.until_pods(*PAIR)
            assert time.monotonic() - froze < FAIL_OVER_SECONDS
            assert await holder(world) == "b"
            job = await world.until_phase("Starting")
            before = versions(await world.children())
            await asyncio.sleep(max(0.0, froze + FROZEN_SECONDS + 4.0 - time.monotonic()))
            assert await holder(world) == "b"
            assert versions(await world.children()) == before
            assert await world.names(PODS) == PAIR
            assert (await world.job())["metadata"]["resourceVersion"] == job["metadata"]["resourceVersion"]


async def test_a_lease_that_is_taken_away_ends_the_acting_and_the_operator_waits_for_its_turn(world, operating):
    with operating(identity="a", **lease_of(world)):
        await until_holder(world, "a")
        spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 6}
        await world._patch(LEASES, NAME, {"spec": spec})
        await asyncio.sleep(3.0)
        await world.apply_job()
        await asyncio.sleep(1.0)
        assert await world.names(PODS) == []
        await until_holder(world, "a")
        await world.until_pods(*PAIR)
