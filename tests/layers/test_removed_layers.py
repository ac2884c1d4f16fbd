"""Each layer of the sandbox taken away in turn, on a real cluster: what needs it is refused, with the setting named.

These tests change what the whole cluster relies on, so they run by themselves. Like the end-to-end tests they upgrade
the release that a demo leaves behind and roll it back: two operators would serve the same jobs. It measures every ten
seconds here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chaos.node import stopped
from e2e import manifests
from e2e.installations import CHART, GVISOR, REGISTRY, TAG, restore, usable_revision
from support import cluster
from support.cluster import Object
from support.job_watch import condition

RELEASE, OPERATOR, JOBS = GVISOR.release, GVISOR.namespace, "nhx-layers"
CANARY = f"{RELEASE}-canary"
INSTALL_SECONDS = 180
MEASURED_SECONDS = 240
"""A measurement that fails takes the gate's 60 s, on a machine that may be busy with anything."""
STATUS_SECONDS = 60


def install(*, cluster_rights: bool = True, **sandbox: Any) -> None:
    values = {
        "image": {"registry": REGISTRY, "tag": TAG},
        "watchNamespaces": [JOBS],
        "sandbox": sandbox,
        "canary": {"intervalSeconds": 10},
        "rbac": {"runtimeClasses": cluster_rights},
    }
    here = (f"--namespace={OPERATOR}", "--reset-values", "--wait", f"--timeout={INSTALL_SECONDS}s", "--values=-")
    command = ("upgrade", "--install", "--force-conflicts", *here, RELEASE, str(CHART))
    cluster.helm(*command, stdin=json.dumps(values), timeout=INSTALL_SECONDS + 30)


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    cluster.apply(*(manifests.restricted_namespace(name) for name in (OPERATOR, JOBS)))
    before = usable_revision(GVISOR)
    try:
        install()
        cluster.apply(*manifests.wordcheck(JOBS).inputs())
        yield
    finally:
        cluster.kubectl("delete", "namespace", JOBS, "--ignore-not-found", timeout=180)
        restore(GVISOR, before)


def until(there: Callable[[], Any], what: str, seconds: float, instead: Callable[[], Any] = lambda: "") -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = there()
        if found:
            return found
        time.sleep(1)
    raise AssertionError(f"not within {seconds:.0f} s: {what}; there is {instead()}")


def outcome() -> dict[str, str]:
    found = cluster.find("configmap", CANARY, OPERATOR)
    return (found or {}).get("data") or {}


def until_outcome(verdict: str) -> dict[str, str]:
    """Of a measurement that began after this was asked for."""
    before = outcome().get("triedAt", "")

    def there() -> dict[str, str] | None:
        found = outcome()
        return found if found.get("verdict") == verdict and found.get("triedAt", "") > before else None

    return until(there, f"a measurement with the outcome {verdict}", MEASURED_SECONDS, outcome)


@contextmanager
def submitted(name: str) -> Iterator[None]:
    """A job whose environment is untrusted: it runs sandboxed or not at all."""
    cluster.apply(manifests.wordcheck(JOBS).job(name, manifests.scripted_model(), repeats=1))
    try:
        yield
    finally:
        cluster.delete("aej", name, JOBS)


def job(name: str) -> Object:
    return cluster.get("aej", name, JOBS)


def refused(name: str, *words: str) -> None:
    """The job is refused for good, says why, and nothing of it ever ran, in whatever placement."""
    with submitted(name):
        ended = until(
            lambda: found if (found := job(name)).get("status", {}).get("phase") == "Failed" else None,
            "the job is refused",
            MEASURED_SECONDS,
            lambda: job(name),
        )
        failed = condition(ended, "Failed")
        assert failed["reason"] == "EnvironmentNeedsSandbox", failed
        for word in words:
            assert word in failed["message"], failed["message"]
        assert "placement" not in ended["status"]
        selector = {"evals.nhx.io/job-uid": ended["metadata"]["uid"]}
        assert cluster.listed("pods", JOBS, selector) == []


def admitted(name: str, runtime_class: str = "gvisor") -> str:
    """Why the job was placed in a sandbox, once its host is made under that RuntimeClass."""
    with submitted(name):
        placed = until(
            lambda: found if (found := job(name)).get("status", {}).get("placement") else None,
            "the job is placed",
            MEASURED_SECONDS,
            lambda: job(name),
        )
        assert placed["status"]["placement"] == "Sandboxed"
        assert placed["status"]["runtimeClassName"] == runtime_class
        selector = {"evals.nhx.io/job-uid": placed["metadata"]["uid"], "evals.nhx.io/role": "gym-host"}
        (host,) = until(lambda: cluster.listed("pods", JOBS, selector), "the host is made", STATUS_SECONDS)
        assert host["spec"]["runtimeClassName"] == runtime_class
        return placed["status"]["placementReason"]


def test_with_every_layer_in_place_jobs_are_let_in_on_what_was_measured() -> None:
    found = until_outcome("Holds")
    node = cluster.get("node", found["networkNode"])
    assert (found["kernel"], found["network"], found["namespace"]) == ("Holds", "Holds", OPERATOR)
    assert "gVisor" in found["kernelMessage"]
    assert node["status"]["nodeInfo"]["kernelVersion"] in found["kernelMessage"]
    assert "pidsLimit" in found
    assert found["networkNode"] in admitted("all-layers")
    field = f"--field-selector=involvedObject.kind=ConfigMap,involvedObject.name={CANARY}"
    events = json.loads(cluster.kubectl("get", "events", f"--namespace={OPERATOR}", field, "--output=json"))["items"]
    assert "SandboxHolds" in {event["reason"] for event in events}


def test_a_deleted_runtime_class_refuses_the_job() -> None:
    layer = cluster.get("runtimeclass", "gvisor")
    try:
        cluster.delete("runtimeclass", "gvisor")
        until_outcome("Fails")
        refused("no-runtime-class", "RuntimeClass 'gvisor'", "sandbox.runtimeClassName")
    finally:
        cluster.apply({**layer, "metadata": {"name": "gvisor"}})
    until_outcome("Holds")
    admitted("runtime-class-again")


def test_a_runtime_class_by_another_name_is_as_good_and_one_that_isolates_nothing_refuses_the_job() -> None:
    """By its name and by its existence the second is a sandbox; its pods run on the node's kernel."""
    good = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nhx-other"},
        "handler": "runsc",
    }
    lying = {**good, "metadata": {"name": "nhx-gvisor-by-name"}, "handler": "runc"}
    cluster.apply(good, lying)
    try:
        install(runtimeClassName="nhx-other")
        assert until_outcome("Holds")["runtimeClassName"] == "nhx-other"
        admitted("other-class", "nhx-other")
        install(runtimeClassName="nhx-gvisor-by-name")
        assert until_outcome("Fails")["kernel"] == "Fails"
        refused("lying-class", "is the node's", "sandbox.runtimeClassName")
    finally:
        install()
        cluster.delete("runtimeclass", "nhx-other")
        cluster.delete("runtimeclass", "nhx-gvisor-by-name")


def test_a_stopped_policy_controller_refuses_the_job() -> None:
    """New pods stay open, whatever policies say."""
    with stopped("kube-router"):
        found = until_outcome("Fails")
        assert (found["kernel"], found["network"]) == ("Holds", "Fails")
        assert ":8081" in found["networkMessage"], "the listener that must refuse has to be named"
        refused("no-policies", "network policies are not enforced", "sandbox.mode")
    until_outcome("Holds")
    admitted("policies-again")


def test_without_cluster_rights_jobs_are_let_in_and_what_was_not_checked_is_said() -> None:
    """The kernel is then told from that of a pod beside it, and nobody knows which nodes there are."""
    install(cluster_rights=False)
    try:
        found = until(
            lambda: seen if "may not read node" in (seen := outcome()).get("notChecked", "") else None,
            "a measurement that says what it could not check",
            MEASURED_SECONDS,
            outcome,
        )
        assert (found["verdict"], found["kernel"], found["network"]) == ("Holds", "Holds", "Holds")
        assert "a pod beside it" in found["kernelMessage"]
        assert "may not list nodes" in found["notChecked"]
        assert found["notChecked"].count("the chart's rbac.runtimeClasses") == 2
        assert "a pod beside it" in admitted("no-cluster-rights")
    finally:
        install()


def test_a_changed_setting_refuses_the_job_and_ends_the_measuring() -> None:
    install(mode="Disabled")
    try:
        refused("disabled", "sandbox.mode is Disabled")
        assert cluster.find("configmap", CANARY, OPERATOR) is None
        until(lambda: not canaries(), "the canaries are gone with their ConfigMap", STATUS_SECONDS, canaries)
    finally:
        install()


def canaries() -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.listed("pods", OPERATOR, {"evals.nhx.io/canary": CANARY})]


def test_there_are_never_more_than_two_canaries_and_none_between_measurements() -> None:
    seen = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        seen.append(sorted(canaries()))
        time.sleep(0.5)
    assert max(map(len, seen)) == 2, "in a minute of measuring every ten seconds both should be seen"
    assert [] in seen
