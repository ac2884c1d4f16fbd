"""Where chaos takes place: releases of its own, with namespaces of their own, and the light host's image."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import node
from chaos.model import key_of, rows_text
from chaos.plan import Job, Where
from devcluster.images import building, loading
from devcluster.processes import Identity
from e2e import manifests
from e2e.installations import CHART, GVISOR, REGISTRY, TAG, restore, usable_revision
from support import cluster
from support.cluster import ROOT, CommandError, Object

LIGHT_IMAGE = "light-gym-host"
LIGHT_CONTAINERFILE = "tests/chaos/light_host/Containerfile"
LIGHT_VARIABLES = {"LIGHT_HOST": "1"}
INSTALL_SECONDS = 240
READY_SECONDS = 330
"""The kubelet's longest pause before it starts a container again, and the start."""
GONE_SECONDS = 300
IDLE_NAMESPACE = "nhx-chaos-idle"
KEYS, ROWS = "model-keys", "rows"
CRDS = ROOT / "crds"
_SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}}
_GYM = {"requests": {"cpu": "400m", "memory": "1Gi"}}
_LIGHT = {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "96Mi"}}
"""Twenty jobs and their operators have to find room on a node of two cores."""


@dataclass(frozen=True)
class Release:
    """One installation of the chart, and the one namespace that it serves."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    chart: Path = CHART
    tag: str = TAG

    @property
    def namespace(self) -> str:
        return f"{self.name}-operator"

    @property
    def jobs(self) -> str:
        return self.name

    def install(self) -> None:
        values = {
            "image": {"registry": REGISTRY, "tag": self.tag},
            "watchNamespaces": [self.jobs],
            "resources": {"evaluator": _SMALL, "gymHost": _GYM, "gymTasks": _GYM},
            "crds": {"install": False},
            "rbac": {"runtimeClasses": False},
            "fullnameOverride": self.name,
            # The earlier chart of the upgrade's test has no such value.
            **({"replicas": 2} if self.chart == CHART else {}),
            **self.values,
        }
        here = (f"--namespace={self.namespace}", "--reset-values", "--wait", f"--timeout={INSTALL_SECONDS}s")
        command = ("upgrade", "--install", *here, "--values=-", self.name, str(self.chart))
        cluster.helm(*command, stdin=json.dumps(values), timeout=INSTALL_SECONDS + 30)

    def uninstall(self) -> None:
        here = f"--namespace={self.namespace}"
        cluster.helm("uninstall", self.name, here, "--ignore-not-found", "--wait", timeout=INSTALL_SECONDS)

    def lease(self) -> dict[str, Any]:
        """Its spec; empty while there is none."""
        found = cluster.find("lease", self.name, self.namespace)
        return found["spec"] if found else {}

    def operators(self) -> dict[str, Object]:
        """The operator's pods by name, which is what they call themselves in the Lease."""
        pods = cluster.listed("pods", self.namespace, {"app.kubernetes.io/name": "nhx-gym-operator"})
        return {pod["metadata"]["name"]: pod for pod in pods}

    def leader(self) -> tuple[str, Identity]:
        """The operator that acts, and its process, once both are there: a kubelet takes its time over a container that
        was killed often."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            holder, pods = patiently(self.lease).get("holderIdentity"), patiently(self.operators)
            if holder in pods and _are_whole(pods):
                return holder, node.process_of(pods[holder], "operator")
            assert time.monotonic() < deadline, f"{holder!r} holds the Lease, and there are the operators {list(pods)}"
            time.sleep(0.5)

    def is_whole(self) -> bool:
        """Whether both operators are ready. One that the kubelet pauses over, since it was killed often, is made anew:
        that pause, of up to five minutes, is none of what is looked at, and jobs would wait for it."""
        pods = self.operators()
        for name in [name for name, pod in pods.items() if _is_paused(pod)]:
            cluster.delete("pod", name, self.namespace, wait=False)
        return _are_whole(pods)


def _are_whole(operators: dict[str, Object]) -> bool:
    return len(operators) == 2 and all(_is_ready(pod) for pod in operators.values())


def _is_paused(pod: Object) -> bool:
    states = [status["state"] for status in pod["status"].get("containerStatuses", [])]
    return any(state.get("waiting", {}).get("reason") == "CrashLoopBackOff" for state in states)


def _is_ready(pod: Object) -> bool:
    return all(status["ready"] for status in pod["status"].get("containerStatuses", [{"ready": False}]))


LIGHT = Release(
    "nhx-chaos-light",
    {
        "sandbox": {"isolation": "ContainerOnly"},
        "images": {"gymHost": {"repository": LIGHT_IMAGE}},
        "resources": {"evaluator": _SMALL, "gymHost": _LIGHT},
    },
)
SANDBOXED = Release("nhx-chaos-sandboxed", {"sandbox": {"isolation": "ContainerOnly"}})
COLOCATED = Release("nhx-chaos-colocated", {"sandbox": {"mode": "Disabled"}})
RELEASES = {Where.LIGHT: LIGHT, Where.SANDBOXED: SANDBOXED, Where.COLOCATED: COLOCATED}


def build_light_image(source: Path = ROOT, tag: str = TAG) -> None:
    building.build([LIGHT_IMAGE], source=source, beside=LIGHT_CONTAINERFILE, tag=tag)
    loading.load([LIGHT_IMAGE], tag)


@contextmanager
def alone() -> Iterator[None]:
    """No other operator serves the namespaces of chaos, and the CRDs are this tree's. What was there before is there
    again afterwards. A demo's release, which serves all namespaces, looks after one of its own meanwhile."""
    had_crds = cluster.find("crd", "agentevaljobs.evals.nhx.io") is not None
    demo = usable_revision(GVISOR)
    if demo is not None:
        cluster.apply(manifests.restricted_namespace(IDLE_NAMESPACE))
        here = (f"--namespace={GVISOR.namespace}", "--reuse-values", "--wait", f"--timeout={INSTALL_SECONDS}s")
        narrowed = f"--set=watchNamespaces={{{IDLE_NAMESPACE}}}"
        cluster.helm("upgrade", GVISOR.release, str(CHART), *here, narrowed, timeout=INSTALL_SECONDS + 30)
    try:
        apply_crds(CRDS)
        yield
    finally:
        if demo is not None:
            restore(GVISOR, demo)
        remove_namespaces(IDLE_NAMESPACE)
        if not had_crds:
            cluster.kubectl("delete", f"--filename={CRDS}", "--ignore-not-found", timeout=GONE_SECONDS)


def apply_crds(folder: Path) -> None:
    """Where they are so already, they stay whose they are: Helm would not take its own back without being told."""
    how = ("--server-side", "--force-conflicts", f"--filename={folder}")
    try:
        cluster.kubectl("diff", *how)
    except CommandError as error:
        if error.code != 1:
            raise
        cluster.kubectl("apply", *how)
    cluster.kubectl("wait", f"--filename={folder}", "--for=condition=Established", "--timeout=60s", timeout=90)


@contextmanager
def installed(*releases: Release) -> Iterator[None]:
    """Releases with their namespaces, which are empty at the beginning and gone at the end."""
    namespaces = [name for release in releases for name in (release.namespace, release.jobs)]
    try:
        for release in releases:
            release.uninstall()
        remove_namespaces(*namespaces)
        cluster.apply(*(manifests.restricted_namespace(name) for name in namespaces))
        for release in releases:
            release.install()
        yield
    finally:
        # Jobs go while their operators are there to see it.
        remove_namespaces(*(release.jobs for release in releases))
        for release in releases:
            release.uninstall()
        remove_namespaces(*namespaces)


def remove_namespaces(*names: str) -> None:
    cluster.kubectl("delete", "namespace", *names, "--ignore-not-found", timeout=GONE_SECONDS)


def inputs(namespace: str, jobs: list[Job]) -> list[Object]:
    """The rows of all jobs, and a key of the model for each of these."""
    keys = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": KEYS, "namespace": namespace},
        "stringData": {job.name: key_of(job.name) for job in jobs},
    }
    return [keys, manifests.config_map(namespace, ROWS, {"rows.jsonl": rows_text()})]


def manifest(job: Job, model_url: str, namespace: str) -> Object:
    target = {
        "agent": "simple_agent",
        "agentConfig": "responses_api_agents/simple_agent/configs/simple_agent.yaml",
        "agentRefName": "mcqa_simple_agent",
        "resourcesServer": "mcqa",
        "modelType": "vllm_model",
        "numRepeats": job.repeats,
        "concurrency": job.concurrency,
        "startupTimeoutSeconds": manifests.PATIENCE_SECONDS,
        **({"envVars": LIGHT_VARIABLES} if job.where is Where.LIGHT else {}),
    }
    policy = {
        "name": "policy",
        "baseUrl": model_url,
        "model": "scripted",
        "apiKey": {"secretKeyRef": {"name": KEYS, "key": job.name}},
    }
    made = manifests.job(namespace, job.name, {"configMap": {"name": ROWS, "key": "rows.jsonl"}}, target, policy)
    made["spec"]["tasks"]["limit"] = job.rows
    made["spec"] |= {"hosts": job.hosts} if job.hosts > 1 else {}
    return made


def patiently(action: Any, seconds: float = 90.0) -> Any:
    """What an action returns, once the API server answers it again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except (CommandError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
