"""Whether the operator's memory grows with the jobs that it has seen: `make soak`. Prints figures and a verdict.

    python bench/soak.py [MINUTES] [--objects]

A real API server, the operator as a process of its own with a Lease and the chart's rights, and lives of jobs one after
other, `AT_ONCE` at a time. Users, scheduler and kubelet are played here, evaluators answer `/progress`. Each job
is deleted at its end with all that it owned, so that the cluster never holds more than it did before.

The operator's process is what runs in its image, with one more task, which writes down every `SAMPLE_SECONDS` what the
process has. Ends with 1 if memory grows by more than `MOST_GROWTH_MIB` per 1,000 jobs after a warm-up of a third of the
time, or if anything of a job is still held once all jobs are gone. Figures are in `build/soak.json`. `--objects` also
says of which types there are more Python objects at the end than after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import yaml
from aiohttp import web

from cluster.conftest import prepare
from cluster.control_plane import audit_log, control_plane, operators_kubeconfig
from cluster.rights import Rights
from cluster.world import World
from nhx_gym_operator.api.conditions import RunReason
from nhx_gym_operator.api.wire.endpoints import EVALUATOR_PORT, PROGRESS_PATH, Stage
from nhx_gym_operator.api.wire.reports import NO_OUTCOME_EXIT_CODE
from nhx_gym_operator.controller import podview
from nhx_gym_operator.controller.app import Operator
from nhx_gym_operator.controller.kube import (
    CONFIG_MAPS,
    EVENTS,
    FILESETS,
    JOBS,
    PODS,
    ApiError,
    KubeClient,
    load_configuration,
)
from nhx_gym_operator.controller.settings import Installation, Settings
from nhx_gym_operator.workloads.workload import ApiAddresses
from support.controller_values import KEY, outcome, progress, settings

Object = dict[str, Any]

MINUTES = 30.0
AT_ONCE = 20
SEED = 6
SAMPLE_SECONDS = 5.0
TOLD_SECONDS = 60.0
LOOK_SECONDS = 0.4
LIFE_SECONDS = 600.0
"""The longest life waits ten seconds for another attempt; the rest is what a busy machine may take."""
LEFT_SECONDS = 120.0
"""Caches are compared with lists every minute."""
WARM_UP = 1 / 3
MOST_GROWTH_MIB = 0.5
"""Per 1,000 jobs. The chart's limit is 512Mi, and some 120 the operator has anyway."""
LEAST_JOBS = 500
"""After the warm-up; with fewer, a step of the allocator's counts for a slope."""
NAMESPACE = "soak"
EVALUATOR_IP = "127.77.0.9"
ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "build" / "soak.json"
STARTED = {"startedAt": "2026-11-29T12:00:00Z"}
MAINS = {"-host-": "gym-host", "-outcome-": "read-outcome"}


# ---- The operator's process


def chosen_settings() -> Settings:
    return settings(watchNamespaces=[NAMESPACE], lease={"name": "op", "namespace": NAMESPACE})


async def operate(kubeconfig: str, samples: Path) -> None:
    installation = Installation(chosen_settings(), KEY, ApiAddresses(("198.18.48.1", 443)))
    operator = Operator(installation, await load_configuration(kubeconfig), health_port=None, identity="soak")
    with samples.open("w", buffering=1) as file:
        telling = asyncio.create_task(tell(operator, file))
        await operator.run()
        telling.cancel()


async def tell(operator: Operator, file: TextIO) -> None:
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        if operator._reconciler is not None:
            print(json.dumps(sample(operator._reconciler)), file=file)


def sample(reconciler: Any) -> Object:
    """What the process has now. Objects by type only where asked for: counting them takes a tenth of a second."""
    caches, queue, poller = reconciler.caches, reconciler._queue, reconciler._poller
    held = {
        "ghosts": caches._ghosts,
        "refusals": reconciler._refusals,
        "reports": reconciler._reports,
        "refused statuses": reconciler._statuses._refused,
        "progress sources": poller._sources,
        "progress answers": poller._answers,
        "timers": queue._timers,
        "failures": queue._failures,
    }
    stores = {resource.plural: len(store.all()) for resource, store in caches._stores.items()}
    types = Counter(type(each).__name__ for each in gc.get_objects()) if os.environ.get("SOAK_OBJECTS") else Counter()
    return {
        "at": time.time(),
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "tasks": len(asyncio.all_tasks()),
        "cached": stores,
        "gone": sum(len(store._dead) for store in caches._stores.values()),
        "held": {name: len(found) for name, found in held.items()},
        "types": dict(types.most_common(60)),
    }


@contextmanager
def operator_process(kubeconfig: Path, samples: Path, *, objects: bool) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, __file__, "--operate", str(operators_kubeconfig(kubeconfig)), str(samples)]
    environment = os.environ | ({"SOAK_OBJECTS": "1"} if objects else {})
    with samples.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


# ---- Everybody else


class Soak:
    """The cluster as it was seen last, and lives in it."""

    def __init__(self, world: World, kubeconfig: Path) -> None:
        self._world = world
        self._dice = random.Random(SEED)
        self._jobs: dict[str, Object] = {}
        self._pods: dict[str, Object] = {}
        self._looked = asyncio.Condition()
        self._log = audit_log(kubeconfig)
        self._open: TextIO | None = None
        self.lived: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()

    async def live(self, until: float) -> None:
        """Lives, `AT_ONCE` at a time, until the time is up; returns when the last ones have ended."""
        numbers = iter(range(1 << 30))

        async def one_after_the_other() -> None:
            while time.monotonic() < until:
                await self._life(f"job-{next(numbers)}")

        look = asyncio.create_task(self._look())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watched(look, until))
                for _ in range(AT_ONCE):
                    tasks.create_task(one_after_the_other())
        finally:
            look.cancel()

    async def _watched(self, look: asyncio.Task[None], until: float) -> None:
        """Without looks nothing goes on."""
        while time.monotonic() < until:
            if look.done():
                await look
            await asyncio.sleep(1)

    async def _look(self) -> None:
        """At jobs and pods, and what scheduler and kubelet do about these."""
        while True:
            jobs = (await self._world.api.list(JOBS, NAMESPACE))["items"]
            pods = (await self._world.api.list(PODS, NAMESPACE))["items"]
            for pod in pods:
                with suppress(ApiError):
                    await self._run(pod)
            async with self._looked:
                self._jobs = {job["metadata"]["name"]: job for job in jobs}
                self._pods = {pod["metadata"]["name"]: pod for pod in pods}
                self._looked.notify_all()
            await asyncio.sleep(LOOK_SECONDS)

    async def _run(self, pod: Object) -> None:
        name = podview.name(pod)
        if podview.is_terminating(pod):
            await self._world.kill(name)
        elif not pod["spec"].get("nodeName"):
            await self._world.bind(name)
            main = next((main for part, main in MAINS.items() if part in name), "agent-evaluate")
            addresses = {"podIP": EVALUATOR_IP, "podIPs": [{"ip": EVALUATOR_IP}]} if main == "agent-evaluate" else {}
            await self._world.report(name, {main: {"running": STARTED}}, **addresses)

    async def _until(self, name: str, what: str, holds: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(LIFE_SECONDS), self._looked:
                await self._looked.wait_for(holds)
        except TimeoutError:
            job = self._jobs.get(name, {})
            raise AssertionError(
                f"{name}: not within {LIFE_SECONDS:g} s: {what}; {json.dumps(job.get('status'))}"
            ) from None

    # Lives

    async def _life(self, name: str) -> None:
        kinds = {
            self._succeeds: 50,
            self._with_a_file_set: 10,
            self._fails: 10,
            self._loses_its_evaluator: 10,
            self._is_cancelled: 10,
            self._is_deleted_midway: 10,
        }
        (kind,) = self._dice.choices(list(kinds), list(kinds.values()))
        await kind(name)
        with suppress(ApiError):
            await self._world.delete_job(name)
        await self._until(
            name,
            "it is gone with its pods",
            lambda: name not in self._jobs and not any(pod.startswith(f"{name}-") for pod in self._pods),
        )
        self.lived[kind.__name__.strip("_").replace("_", " ")] += 1

    async def _begins(self, name: str, **spec: Any) -> None:
        """Until its progress stands in its status, as the operator was told it."""
        await self._world.apply_job(name, **spec)
        await self._until(
            name, "its progress is known", lambda: (_status(self._jobs, name).get("progress") or {}).get("done")
        )

    async def _ends(self, name: str, phase: str) -> None:
        await self._until(name, f"it is {phase}", lambda: _status(self._jobs, name).get("phase") == phase)

    async def _succeeds(self, name: str) -> None:
        await self._begins(name)
        await self._world.report_outcome(outcome(), f"{name}-evaluator-1")
        await self._ends(name, "Succeeded")

    async def _with_a_file_set(self, name: str) -> None:
        """With one that is its own, and a warning about its pod."""
        await self._world.create_config_map(name, **{"rows.jsonl": "{}"})
        await self._world.create_file_set(name, name, purpose="dataset")
        await self._begins(name, tasks={"dataset": {"fileSet": {"name": name, "path": "rows.jsonl"}}})
        pod = self._pods[f"{name}-evaluator-1"]
        await self._world.complain(pod, "Unhealthy", "it did not answer once")
        await self._world.report_outcome(outcome(), podview.name(pod))
        await self._ends(name, "Succeeded")
        await self._world.remove(FILESETS, name)
        await self._world.remove(CONFIG_MAPS, name)
        # As the API server does after an hour.
        await self._world.remove(EVENTS, f"{podview.name(pod)}.unhealthy")

    async def _fails(self, name: str) -> None:
        await self._begins(name)
        told = outcome("Failed", done=0, reason=RunReason.DATASET_INVALID, message="line 3")
        await self._world.report_outcome(told, f"{name}-evaluator-1")
        await self._ends(name, "Failed")

    async def _loses_its_evaluator(self, name: str) -> None:
        await self._begins(name)
        await self._world.kill(f"{name}-evaluator-1")
        reader = f"{name}-outcome-1"
        await self._until(name, "its results are read", lambda: _runs(self._pods, reader))
        ended = {"exitCode": NO_OUTCOME_EXIT_CODE, "message": "no outcome", "finishedAt": "2026-11-29T12:00:01Z"}
        await self._world.report(reader, {"read-outcome": {"terminated": ended}}, "Failed")
        again = f"{name}-evaluator-2"
        await self._until(name, "another attempt runs", lambda: _runs(self._pods, again))
        await self._world.report_outcome(outcome(), again)
        await self._ends(name, "Succeeded")

    async def _is_cancelled(self, name: str) -> None:
        await self._begins(name)
        await self._world._patch(JOBS, name, {"spec": {"cancel": True}})
        await self._ends(name, "Cancelled")

    async def _is_deleted_midway(self, name: str) -> None:
        await self._begins(name)

    # Writes

    def count_writes(self) -> None:
        """From the API server's record of the operator's calls, of which a part that was read is not kept."""
        while True:
            if self._open is None:
                self._open = self._log.open()
            while line := self._open.readline():
                entry = json.loads(line)
                if entry["verb"] in ("create", "update", "patch", "delete"):
                    self.writes[f"{entry['verb']} {entry['objectRef']['resource']}"] += 1
            parts = list(self._log.parent.glob(f"{self._log.stem}-*"))
            if not parts:
                return
            # What was open has become one of them.
            self._open.close()
            self._open = None
            for part in parts:
                part.unlink()

    @property
    def writes_per_job(self) -> float:
        """Without those of the Lease, which are every two seconds whatever jobs there are."""
        count = sum(times for what, times in self.writes.items() if not what.endswith(" leases"))
        return count / max(1, self.lived.total())


def _status(jobs: dict[str, Object], name: str) -> Object:
    return jobs.get(name, {}).get("status") or {}


def _runs(pods: dict[str, Object], name: str) -> bool:
    return pods.get(name, {}).get("status", {}).get("phase") == "Running"


@asynccontextmanager
async def evaluators() -> AsyncIterator[None]:
    """What all of them answer."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=progress(Stage.COLLECTING, done=4).model_dump_json())

    app = web.Application()
    app.router.add_get(PROGRESS_PATH, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, EVALUATOR_IP, EVALUATOR_PORT).start()
    try:
        yield
    finally:
        await runner.cleanup()


# ---- A run


def samples_of(path: Path) -> list[Object]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


async def soak(folder: Path, kubeconfig: Path, minutes: float, *, objects: bool) -> Object:
    await prepare(kubeconfig)
    api = KubeClient(await load_configuration(str(kubeconfig)))
    world = World(api, NAMESPACE)
    await world.create_namespace()
    await asyncio.to_thread(Rights(kubeconfig).grant, chosen_settings())
    samples = folder / "samples.jsonl"
    with operator_process(kubeconfig, samples, objects=objects) as process:
        run = Soak(world, kubeconfig)
        jobs_by_time: list[tuple[float, int]] = []
        async with evaluators():
            lives = asyncio.create_task(run.live(time.monotonic() + minutes * 60))
            began = told = time.monotonic()
            while not lives.done():
                await asyncio.wait([lives], timeout=SAMPLE_SECONDS)
                await asyncio.to_thread(run.count_writes)
                jobs_by_time.append((time.time(), run.lived.total()))
                if process.poll() is not None:
                    raise SystemExit(f"the operator ended: {samples.with_suffix('.log').read_text()[-4000:]}")
                if time.monotonic() - told >= TOLD_SECONDS and (found := samples_of(samples)):
                    told = time.monotonic()
                    print(f"{(told - began) / 60:5.1f} min: {shown(found[-1], run)}", flush=True)
            await lives
            seconds = time.monotonic() - began
        await until_nothing_is_left(samples)
        await asyncio.to_thread(run.count_writes)
    await api.close()
    return figures(run, samples_of(samples), jobs_by_time, seconds)


def shown(found: Object, run: Soak) -> str:
    return (
        f"{run.lived.total():,} jobs, {found['rss'] / 2**20:.1f} MiB, {sum(found['cached'].values())} objects cached, "
        f"{found['tasks']} tasks, {run.writes_per_job:.1f} API writes per job"
    )


def left(found: Object) -> Object:
    return {name: count for name, count in (found["cached"] | found["held"]).items() if count}


async def until_nothing_is_left(samples: Path) -> None:
    """Or the time for that is up."""
    deadline = time.monotonic() + LEFT_SECONDS
    before = len(samples_of(samples))
    while time.monotonic() < deadline:
        await asyncio.sleep(SAMPLE_SECONDS)
        found = samples_of(samples)
        if len(found) > before + 1 and not left(found[-1]):
            return


def figures(run: Soak, found: list[Object], jobs_by_time: list[tuple[float, int]], seconds: float) -> Object:
    def jobs_at(at: float) -> int:
        return max((jobs for when, jobs in jobs_by_time if when <= at), default=0)

    busy = [(jobs_at(each["at"]), each) for each in found if each["at"] <= jobs_by_time[-1][0]]
    begin = busy[0][1]["at"] + WARM_UP * (busy[-1][1]["at"] - busy[0][1]["at"])
    warm = [(jobs, each) for jobs, each in busy if each["at"] >= begin]
    slope = statistics.linear_regression([jobs for jobs, _ in warm], [each["rss"] for _, each in warm]).slope
    tenth = max(1, len(warm) // 10)
    grown = Counter(warm[-1][1]["types"])
    grown.subtract(warm[0][1]["types"])
    return {
        "seconds": round(seconds),
        "jobs": dict(run.lived),
        "jobsAfterWarmUp": warm[-1][0] - warm[0][0],
        "rssMiBAfterWarmUp": _mib(statistics.median(each["rss"] for _, each in warm[:tenth])),
        "rssMiBAtEnd": _mib(statistics.median(each["rss"] for _, each in warm[-tenth:])),
        "rssMiBMost": _mib(max(each["rss"] for each in found)),
        "growthMiBPer1000Jobs": round(slope * 1000 / 2**20, 2),
        "cachedMost": max(sum(each["cached"].values()) for each in found),
        "tasksMost": max(each["tasks"] for each in found),
        "tasksAtEnd": found[-1]["tasks"],
        "rememberedAsGone": found[-1]["gone"],
        "apiWritesPerJob": round(run.writes_per_job, 1),
        "apiWrites": dict(run.writes),
        "left": left(found[-1]),
        "moreObjects": {name: count for name, count in grown.most_common(15) if count > 100},
        "samples": [
            {"jobs": jobs, **{key: each[key] for key in ("at", "rss", "tasks", "gone")}} for jobs, each in busy
        ],
    }


def _mib(size: float) -> float:
    return round(size / 2**20, 1)


def verdict(found: Object) -> str:
    """Empty if memory does not grow."""
    problems = []
    if found["jobsAfterWarmUp"] < LEAST_JOBS:
        problems.append(f"{found['jobsAfterWarmUp']} jobs after the warm-up tell nothing, {LEAST_JOBS} are needed")
    elif found["growthMiBPer1000Jobs"] > MOST_GROWTH_MIB:
        problems.append(f"memory grows by {found['growthMiBPer1000Jobs']} MiB per 1,000 jobs")
    if found["left"]:
        problems.append(f"still held once all jobs were gone: {found['left']}")
    return "; ".join(problems)


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether the operator's memory grows with the jobs it has seen.")
    parser.add_argument("minutes", nargs="?", type=float, default=MINUTES)
    parser.add_argument("--objects", action="store_true", help="say of which types there are more objects")
    parser.add_argument("--operate", nargs=2, metavar=("KUBECONFIG", "SAMPLES"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.operate:
        asyncio.run(operate(chosen.operate[0], Path(chosen.operate[1])))
        return 0
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as kubeconfig:
        found = asyncio.run(soak(Path(folder), kubeconfig, chosen.minutes, objects=chosen.objects))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(found, indent=1) + "\n")
    print(yaml.safe_dump({key: value for key, value in found.items() if key != "samples"}, sort_keys=False))
    problem = verdict(found)
    print(f"VERDICT: {problem or 'memory does not grow with jobs, and nothing of them is held'}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
