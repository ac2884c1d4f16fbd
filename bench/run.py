"""Where a job's time and memory go: `make bench`. Prints the tables of docs/performance.md.

All figures of one call come from one run on one machine, one job after the other, so that their ratios mean something.
The policy is the scripted server, which answers at once: what is measured is everything but the model.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from e2e import manifests, runs, sdk_alone
from e2e.installations import COLOCATED, GVISOR, RUNC, Installation
from e2e.world import World
from support import cluster
from support.cluster import Object
from support.job_watch import condition, is_true
from support.report import pods_of

ROLLOUTS = 1000
REPEATS = ROLLOUTS // manifests.MCQA_TASKS
RUN_SECONDS = 900
STEPS = ("pods created", "containers running", "gate passed", "Gym ready", "first rollout", "succeeded")
LOGGED = {"gate passed": "host 0 is starting", "Gym ready": "host 0 is ready"}
"""What the evaluator writes when a host's launcher runs, and when it takes rollouts: a fast run has begun and ended
between two looks at the job."""
_RATE = re.compile(r"(\d+) rollouts in ([\d.]+) s, ([\d.]+) a second")
_PLACES = {"gVisor": GVISOR, "runc": RUNC, "colocated": COLOCATED}


class Clock:
    """Seconds since a job was applied, as each thing is first seen or was logged."""

    def __init__(self) -> None:
        self._start = time.time()
        self.seconds: dict[str, float] = {}

    def saw(self, what: str) -> None:
        self.seconds.setdefault(what, time.time() - self._start)

    def read(self, log: str) -> None:
        """An evaluator's log with `kubectl logs --timestamps`, from a node with this machine's clock."""
        for step, words in LOGGED.items():
            line = next((line for line in log.splitlines() if line.endswith(words)), None)
            if line is not None:
                self.seconds[step] = datetime.fromisoformat(line.split()[0]).timestamp() - self._start


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            world.build()
            latencies = {name: latency(place) for name, place in _PLACES.items()}
            rates = {name: rate(world, place) for name, place in _PLACES.items()}
            rates["gym eval run alone"] = rate_of_gym_alone()
        finally:
            world.close()
            world.remove()
    print("\n| seconds from apply to | " + " | ".join(latencies) + " |\n|---|" + "---|" * len(latencies))
    for step in STEPS:
        print(f"| {step} | " + " | ".join(_shown(clock.get(step)) for clock in latencies.values()) + " |")
    print(f"\n| {ROLLOUTS} rollouts, concurrency 8 | rollouts/s | MiB evaluator | MiB host | MiB operator |")
    print("|---|---|---|---|---|")
    for name, (rollouts, memory) in rates.items():
        sizes = (_mib(memory, container) for container in ("agent-evaluate", "gym-host", "operator"))
        print(f"| {name} | {rollouts:.1f} | {' | '.join(sizes)} |")
    return 0


def latency(place: Installation) -> dict[str, float]:
    """One short job, looked at as often as kubectl allows."""
    print(f"latency in {place.jobs}", file=sys.stderr)
    job = manifests.mcqa_job(place.jobs, "latency")
    clock = Clock()
    cluster.apply(job)
    deadline = time.monotonic() + RUN_SECONDS
    while "succeeded" not in clock.seconds:
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {place.jobs}/latency did not succeed within {RUN_SECONDS} s")
        state = cluster.get("aej", "latency", place.jobs)
        pods = pods_of(place.jobs, state["metadata"]["uid"])
        for step in _steps_seen(state, pods, colocated=place is COLOCATED):
            clock.saw(step)
    for pod in pods:
        if pod["metadata"]["labels"]["evals.nhx.io/role"] == "evaluator":
            name, where = pod["metadata"]["name"], f"--namespace={place.jobs}"
            clock.read(cluster.kubectl("logs", name, where, "--container=agent-evaluate", "--timestamps"))
    cluster.delete("aej", "latency", place.jobs)
    return clock.seconds


def _steps_seen(state: Object, pods: list[Object], *, colocated: bool) -> list[str]:
    seen = ["pods created"] if pods else []
    statuses = [status for pod in pods for status in pod["status"].get("containerStatuses", [])]
    if statuses and all("waiting" not in status["state"] for status in statuses):
        seen += ["containers running"] + ([] if colocated else ["gate passed"])
    inits = [status for pod in pods for status in pod["status"].get("initContainerStatuses", [])]
    if any("running" in status["state"] for status in inits):
        seen.append("containers running")
    if is_true(state, "SandboxReady") or is_true(state, "Running"):
        seen.append("Gym ready")
    if (state.get("status", {}).get("progress") or {}).get("done"):
        seen.append("first rollout")
    if condition(state, "Complete").get("status") == "True":
        seen.append("succeeded")
    return seen


def rate(world: World, place: Installation) -> tuple[float, dict[str, int]]:
    """Rollouts per second as the evaluator logs them, and the most memory that each container was seen with."""
    print(f"rate in {place.jobs}", file=sys.stderr)
    job = manifests.mcqa_job(place.jobs, "rate", numRepeats=REPEATS)
    cluster.apply(job)
    memory: dict[str, int] = {}
    deadline = time.monotonic() + RUN_SECONDS
    while not _has_ended(cluster.get("aej", "rate", place.jobs)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {place.jobs}/rate did not end within {RUN_SECONDS} s")
        found = cluster.working_sets(place.namespace) | cluster.working_sets(place.jobs)
        for name, size in found.items():
            memory[name] = max(size, memory.get(name, 0))
        time.sleep(1)
    run = runs.ended(world, job)
    logged = _RATE.search(run.logs["agent-evaluate"])
    if logged is None or int(logged[1]) != ROLLOUTS:
        raise ValueError(f"job {place.jobs}/rate logged no rate of {ROLLOUTS} rollouts: {run.logs['agent-evaluate']}")
    cluster.delete("aej", "rate", place.jobs)
    return float(logged[3]), memory


def _has_ended(state: Object) -> bool:
    return is_true(state, "Complete") or is_true(state, "Failed")


def rate_of_gym_alone() -> tuple[float, dict[str, int]]:
    """The same rows by Gym's own two commands, as the SDK starts them, in a plain runc pod."""
    print("rate of gym alone", file=sys.stderr)
    return ROLLOUTS / sdk_alone.run("gym-alone", REPEATS, seconds=RUN_SECONDS).seconds, {}


def _shown(seconds: float | None) -> str:
    return "—" if seconds is None else f"{seconds:.1f}"


def _mib(memory: dict[str, Any], container: str) -> str:
    return f"{memory[container] / 2**20:.0f}" if memory.get(container) else "—"


if __name__ == "__main__":
    sys.exit(main())
