"""More jobs at once than a namespace's quota has room for."""

import asyncio

from cluster.world import condition
from nhx_gym_operator.controller import podview
from nhx_gym_operator.controller.kube import PODS
from support.controller_values import outcome

NAMES = ("one", "two", "three", "four")
PODS_AT_ONCE = 4
START_SECONDS = 15


class Kubelet:
    """Starts what there is, and ends evaluators that have a host and were told to go on. Looks at each moment."""

    def __init__(self, world):
        self.world = world
        self.may_end = False
        self.without_host = 0
        self.refused = {}

    async def run(self):
        while True:
            await self._once()
            await asyncio.sleep(0.3)

    async def _once(self):
        pods = (await self.world.api.list(PODS, self.world.namespace))["items"]
        alive = [pod for pod in pods if not podview.has_ended(pod)]
        assert len(alive) <= PODS_AT_ONCE
        hosts = {podview.name(pod).partition("-")[0] for pod in alive if podview.is_host(pod)}
        evaluators = {podview.name(pod).partition("-")[0] for pod in alive if not podview.is_host(pod)}
        started = {podview.name(pod).partition("-")[0] for pod in alive if podview.is_host(pod) and _runs(pod)}
        # Of a pair that is being made, one may be seen alone.
        self.without_host = max(self.without_host, len(evaluators - hosts))
        for pod in alive:
            name, job = podview.name(pod), podview.name(pod).partition("-")[0]
            if podview.phase(pod) == "Pending":
                main = "gym-host" if podview.is_host(pod) else "agent-evaluate"
                await self.world.report(name, {main: {"running": {"startedAt": "2026-11-29T12:00:00Z"}}})
            elif self.may_end and not podview.is_host(pod) and job in started:
                await self.world.report_outcome(outcome(), name)
                ended = {"terminated": {"exitCode": 0, "finishedAt": "2026-11-29T12:01:00Z"}}
                await self.world.report(f"{job}-host-0-1", {"gym-host": ended}, "Succeeded")


def _runs(pod):
    return podview.phase(pod) == "Running"


async def test_four_jobs_share_a_quota_for_two_and_all_succeed(world, operating):
    await world.limit_pods(PODS_AT_ONCE)
    with operating(timeouts={"podStartSeconds": START_SECONDS}):
        kubelet = Kubelet(world)
        async with asyncio.TaskGroup() as tasks:
            playing = tasks.create_task(kubelet.run())
            for name in NAMES:
                await world.apply_job(name)

            async def phases():
                jobs = [await world.job(name) for name in NAMES]
                return sorted(job.get("status", {}).get("phase", "") for job in jobs)

            async def conditions():
                return [(await world.job(name))["status"]["conditions"] for name in NAMES]

            async def two_wait():
                jobs = [await world.job(name) for name in NAMES]
                found = [condition(job, "Running") for job in jobs]
                return [entry for entry in found if entry and entry["reason"] == "PodRefused"][1:]

            await world.until(two_wait, "two jobs wait", phases)
            # Longer than a pod may take to start: waiting for the quota is not that.
            await asyncio.sleep(START_SECONDS + 4)
            assert await phases() == ["Pending", "Pending", "Starting", "Starting"], await conditions()
            for name in NAMES:
                entry = condition(await world.job(name), "Running")
                if entry["reason"] == "PodRefused":
                    assert "exceeded quota: pods, requested: pods=1" in entry["message"]
                    assert "used: pods=4, limited: pods=4" in entry["message"]
            kubelet.may_end = True
            for name in NAMES:
                await world.until_phase("Succeeded", name)
            playing.cancel()
        assert kubelet.without_host <= 1
        assert [(await world.job(name))["status"]["attempt"] for name in NAMES] == [1, 1, 1, 1]


async def test_a_host_whose_place_was_taken_comes_back_when_there_is_room_and_its_evaluator_is_not_ended(
    world, operating
):
    await world.limit_pods(2)
    with operating(timeouts={"podStartSeconds": START_SECONDS}):
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        await world.report_running()
        await world.report("mcqa-host-0-1", {"gym-host": {"running": {"startedAt": "2026-11-29T12:00:00Z"}}})
        await world.limit_pods(1)
        await world.remove(PODS, "mcqa-host-0-1")
        job = await world.until_condition("SandboxReady", "PodRefused")
        assert "used: pods=1, limited: pods=1" in condition(job, "SandboxReady")["message"]
        await asyncio.sleep(START_SECONDS + 2)
        assert (await world.job())["status"]["attempt"] == 1
        await world.limit_pods(2)
        await world.until_pods("mcqa-evaluator-1", "mcqa-host-0-1")
        await world.report_outcome(outcome())
        await world.until_phase("Succeeded")
