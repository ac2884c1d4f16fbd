"""A job that ended, with all that was read of it while its pods were there."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from e2e.world import World
from support import cluster
from support.cluster import ROOT, CommandError, Object
from support.job_watch import phase
from support.report import describe, pods_of

RUN_SECONDS = 900
"""From apply to the end of a job whose Gym starts beside others on two busy cores."""


@dataclass(frozen=True)
class Run:
    job: Object
    states: list[Object]
    """Every state of the job that the watch saw."""
    pods: list[Object]
    logs: dict[str, str]
    """Log by `container`, of the newest pod that has one of that name."""
    bundle: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What a scenario looked at while the job ran."""

    @property
    def status(self) -> dict[str, Any]:
        return self.job["status"]

    @property
    def aggregates(self) -> dict[str, dict[str, Any]]:
        return {aggregate["name"]: aggregate for aggregate in self.status.get("aggregates") or []}

    def pod(self, role: str) -> Object:
        """The newest pod of a role."""
        found = [pod for pod in self.pods if pod["metadata"]["labels"]["evals.nhx.io/role"] == role]
        if not found:
            raise AssertionError(f"the job has no {role} pod, only {[p['metadata']['name'] for p in self.pods]}")
        return max(found, key=lambda pod: int(pod["metadata"]["labels"]["evals.nhx.io/attempt"]))

    def image_id(self, role: str, container: str) -> str:
        """What the kubelet says it ran."""
        status = self.pod(role)["status"]
        entries = status.get("initContainerStatuses", []) + status["containerStatuses"]
        return next(entry["imageID"] for entry in entries if entry["name"] == container)


def succeeded(world: World, job: Object, **facts: Any) -> Run:
    """Waits for a job that was applied to succeed and downloads its bundle, unless that goes with the pod."""
    run = ended(world, job, **facts)
    if phase(run.job) != "Succeeded":
        fail(job, "it should have succeeded")
    bundle = download(world, job) if "persistentVolumeClaim" in job["spec"]["results"] else None
    return Run(run.job, run.states, run.pods, run.logs, bundle, run.facts)


def failed(world: World, job: Object, **facts: Any) -> Run:
    run = ended(world, job, **facts)
    if phase(run.job) != "Failed":
        fail(job, "it should have failed")
    return run


def cancelled(world: World, job: Object, **facts: Any) -> Run:
    run = ended(world, job, **facts)
    if phase(run.job) != "Cancelled":
        fail(job, "it should have been cancelled")
    return Run(run.job, run.states, run.pods, run.logs, download(world, job), run.facts)


def ended(world: World, job: Object, **facts: Any) -> Run:
    namespace, name = key_of(job)
    last = world.watch.finished(namespace, name, timeout=RUN_SECONDS)
    pods = pods_of(namespace, last["metadata"]["uid"])
    return Run(last, world.watch.history(namespace, name), pods, _logs(pods), facts=facts)


def key_of(job: Object) -> tuple[str, str]:
    return job["metadata"]["namespace"], job["metadata"]["name"]


def fail(job: Object, problem: str) -> NoReturn:
    namespace, name = key_of(job)
    raise AssertionError(f"job {namespace}/{name}: {problem}\n{describe(namespace, name)}")


def download(world: World, job: Object) -> Path:
    namespace, name = key_of(job)
    target = world.directory / namespace / name
    nhx(world, "download", name, str(target), f"--namespace={namespace}")
    return target


def nhx(world: World, *arguments: str) -> str:
    return cluster.run(["kubectl", "nhx", *arguments], timeout=RUN_SECONDS, extra=with_plugin(world))


def with_plugin(world: World) -> dict[str, str]:
    """Variables with which `kubectl nhx` is found as every plugin is: an executable of that name on PATH."""
    folder = world.directory / "plugins"
    plugin = folder / "kubectl-nhx"
    if not plugin.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"kubectl-nhx.{os.getpid()}.{threading.get_ident()}"
        fresh.write_text(
            f"#!/bin/sh\nexec {sys.executable} -c 'from nhx_gym_operator.cli.main import main; main()' \"$@\"\n"
        )
        fresh.chmod(0o755)
        fresh.rename(plugin)
    path = f"{folder}{os.pathsep}{cluster.environment()['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(ROOT / "operator")}


def nhx_json(world: World, command: str, job: Object, *arguments: str) -> Any:
    """What a command says of a job, as JSON."""
    namespace, name = key_of(job)
    return json.loads(nhx(world, command, name, f"--namespace={namespace}", "--output=json", *arguments))


def strict_json(text: str) -> Any:
    """JSON without the NaN and Infinity that Python's reader takes and others refuse."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def tree_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def rows_of(file: Path) -> list[Any]:
    return [strict_json(line) for line in file.read_text().splitlines()]


def _logs(pods: list[Object]) -> dict[str, str]:
    logs = {}
    for pod in sorted(pods, key=lambda pod: pod["metadata"]["creationTimestamp"]):
        spec = pod["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            try:
                logs[container["name"]] = cluster.kubectl(
                    "logs",
                    pod["metadata"]["name"],
                    f"--namespace={pod['metadata']['namespace']}",
                    f"--container={container['name']}",
                )
            except CommandError:
                logs.setdefault(container["name"], "")
    return logs
