"""Jobs that get stuck on real pods, by a real scheduler, kubelet and runtime.

What an administrator's settings provoke has an operator of its own, in this process and for one namespace: it sees the
same cluster as one in a pod.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.conftest import OperatorThread
from devcluster.images import building, loading
from devcluster.images.building import reference
from devcluster.settings import PAUSE_IMAGE
from e2e import manifests, runs
from e2e.installations import RUNC
from e2e.manifests import HUNG_PORT
from e2e.runs import Run
from e2e.stage import idle_scenario, nightly, scenario
from e2e.world import World
from nhx_gym_operator.controller.settings import Installation
from nhx_gym_operator.workloads.workload import ApiAddresses
from support import cluster, stuck
from support.cluster import Object
from support.controller_values import KEY, settings
from support.report import pods_of

NAMED_SECONDS = 60
"""How soon a status names what a job is stuck in."""
END_SECONDS = 480
"""Patience only: four containers start one after the other, beside all else that runs."""
START_SECONDS = 600
_DEADLINE = {"podStartSeconds": 40}
BARE_IMAGE, BARE_CONTAINERFILE = "no-python", "tests/e2e/no_python/Containerfile"


@dataclass(frozen=True)
class Stuck:
    """A job as it was when it showed the state, what explain said then, and the job at its end."""

    state: str
    seen: Object
    seconds: float
    """From its making until the state was in the status."""
    explained: str
    end: Object
    states: list[Object] = field(default_factory=list)
    """All that it went through, where its end was waited for."""


@idle_scenario
def image_missing(world: World) -> Stuck:
    images = {"gymTasks": f"{reference('nhx-gym-tasks')}-that-nobody-made"}
    return _stuck(world, "image", "The image is missing, or may not be pulled", images=images)


@idle_scenario
def no_node_fits(world: World) -> Stuck:
    return _stuck(world, "node", "No node fits", pods={"nodeSelector": {"e2e.nhx.io/no": "such-node"}})


@idle_scenario
def claim_never_binds(world: World) -> Stuck:
    claim = {"persistentVolumeClaim": {"size": "64Mi", "storageClassName": "nobodys"}}
    return _stuck(world, "claim", "A claim never binds", job={"results": claim})


@nightly
@idle_scenario
def evaluator_out_of_memory(world: World) -> Stuck:
    small = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "40Mi"}}
    state = "The evaluator runs out of memory"
    return _stuck(world, "memory", state, job={"backoffLimit": 1}, resources={"gymTasks": small})


@nightly
@idle_scenario
def command_missing(world: World) -> Stuck:
    building.build([BARE_IMAGE], beside=BARE_CONTAINERFILE)
    loading.load([BARE_IMAGE])
    images, state = {"gymTasks": reference(BARE_IMAGE)}, "A command that the image does not have"
    return _stuck(world, "command", state, job={"backoffLimit": 1}, images=images)


@nightly
@idle_scenario
def foreign_program(world: World) -> Stuck:
    """An image that runs something of its own."""
    state = "The evaluator runs and does not answer"
    return _stuck(world, "program", state, job={"activeDeadlineSeconds": 90}, images={"gymTasks": PAUSE_IMAGE})


@nightly
@idle_scenario
def too_much_written(world: World) -> Stuck:
    """More than a kilobyte, which its log alone is."""
    disk = {"ephemeral-storage": "1Ki"}
    small = {"requests": {"cpu": "10m", "memory": "16Mi"} | disk, "limits": disk}
    return _stuck(world, "disk", "A pod is evicted", job={"backoffLimit": 1}, resources={"gymTasks": small})


def _stuck(world: World, name: str, state: str, *, job: Object | None = None, **changes: Any) -> Stuck:
    """A colocated job of a namespace of its own, whose operator has these settings."""
    namespace = f"nhx-e2e-stuck-{name}"
    made = manifests.mcqa_job(namespace, name)
    made["spec"] |= job or {}
    cluster.apply(manifests.restricted_namespace(namespace), manifests.key_secret(namespace, world.model_key))
    try:
        with _operator(namespace, **changes):
            cluster.apply(made)
            since = time.monotonic()
            seen = _until_seen(world, made, state)
            seconds = time.monotonic() - since
            explained = runs.nhx(world, "explain", name, f"--namespace={namespace}")
            end = world.watch.finished(namespace, name, timeout=END_SECONDS)
            states = world.watch.history(namespace, name)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    return Stuck(state, seen, seconds, explained, end, states)


@contextmanager
def _operator(namespace: str, **changes: Any) -> Iterator[None]:
    images = {role: reference(image) for role, image in _IMAGES.items()} | changes.pop("images", {})
    chosen = settings(
        images=images, watchNamespaces=[namespace], sandbox={"mode": "Disabled"}, timeouts=_DEADLINE, **changes
    )
    process = OperatorThread(cluster.environment()["KUBECONFIG"], Installation(chosen, KEY, ApiAddresses(None)))
    process.start()
    process.wait_until_ready()
    try:
        yield
    finally:
        process.stop()


_IMAGES = {"tasks": "nhx-tasks", "gymHost": "nhx-gym-host", "gymTasks": "nhx-gym-tasks"}


@nightly
@scenario
def hung_model(world: World) -> dict[str, Stuck]:
    """A model that takes calls and answers none; then the host's processes are stopped, so that its sockets stay."""
    job = manifests.mcqa_job(RUNC.jobs, "hung", port=HUNG_PORT, concurrency=1)
    job["spec"]["models"][0]["timeoutSeconds"] = 3600
    cluster.apply(job)
    namespace, name = runs.key_of(job)
    began = world.watch.until(namespace, name, _collects, what="it collects", timeout=START_SECONDS)
    found, since = {}, time.monotonic()
    found["model"] = _while_it_runs(world, job, "The model hangs", since)
    host = next(
        pod for pod in pods_of(namespace, began["metadata"]["uid"]) if pod["metadata"]["name"].startswith("hung-host")
    )
    frozen = _processes_of(host)
    try:
        _signal(frozen, signal.SIGSTOP)
        state = "A gym host answers no more and keeps its sockets"
        found["host"] = _while_it_runs(world, job, state, time.monotonic())
    finally:
        _signal(frozen, signal.SIGCONT)
        cluster.delete("aej", name, namespace, wait=False)
    return found


@nightly
@scenario
def port_clash(world: World) -> Run:
    """The resources server is given the port on which its host listens."""
    job = manifests.mcqa_job(RUNC.jobs, "clash", hydraParams={"mcqa.resources_servers.mcqa.port": 8000})
    cluster.apply(job)
    return runs.failed(world, job)


def _while_it_runs(world: World, job: Object, state: str, since: float) -> Stuck:
    seen = _until_seen(world, job, state, 2 * NAMED_SECONDS)
    namespace, name = runs.key_of(job)
    seconds = time.monotonic() - since
    return Stuck(state, seen, seconds, runs.nhx(world, "explain", name, f"--namespace={namespace}"), seen)


def _until_seen(world: World, job: Object, state: str, seconds: float = 2 * NAMED_SECONDS) -> Object:
    namespace, name = runs.key_of(job)
    what = f"{state}: {stuck.state(state).says}"
    return world.watch.until(namespace, name, lambda job: stuck.is_seen(state, job), what=what, timeout=seconds)


def _collects(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(entry["type"] == "Running" and entry["status"] == "True" for entry in conditions)


def _processes_of(pod: Object) -> list[int]:
    """Of this machine, which is the node: those in the pod's control group."""
    uid = pod["metadata"]["uid"]
    names = (uid, uid.replace("-", "_"))
    found = []
    for entry in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            group = entry.read_text()
        except OSError:
            continue
        if any(name in group for name in names):
            found.append(int(entry.parent.name))
    if not found:
        raise AssertionError(f"pod {pod['metadata']['name']} has no processes on this machine")
    return found


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
