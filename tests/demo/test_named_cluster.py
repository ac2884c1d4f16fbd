"""`make demo CONTEXT=… REGISTRY=…`: a cluster that the user names, a real registry, the user's own kubectl and Helm 3.

The local cluster stands in for the user's, under another name in another kubeconfig. What a demo left on it before is
gone afterwards, but for the operator, which is rolled back.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from devcluster import containerd, paths
from devcluster.demo import JOB_NAMESPACE, JOBS, MODEL_NAMESPACE, OPERATOR_NAMESPACE, RELEASE
from support import cluster
from support.cluster import Object
from support.image_registry import image_registry

CONTEXT = "lab"
NAMESPACES = (OPERATOR_NAMESPACE, MODEL_NAMESPACE, JOB_NAMESPACE)
DEMO_SECONDS = 30 * 60
"""All images may have to be built first."""
HELM_SECONDS = 180


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with image_registry(tmp_path_factory.mktemp("registry")) as host:
        yield f"{host}/team"


@pytest.fixture(scope="module")
def surroundings(registry: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What such a user has in their shell. The kubeconfig's current context leads nowhere, so that nothing that uses
    it can succeed."""
    folder = tmp_path_factory.mktemp("user")
    kubeconfig, registries = folder / "kubeconfig", folder / "registries.conf"
    kubeconfig.write_text(cluster.kubectl("config", "view", "--raw", "--flatten"))
    own = ("config", f"--kubeconfig={kubeconfig}")
    cluster.kubectl(*own, "rename-context", cluster.kubectl("config", "current-context").strip(), CONTEXT)
    cluster.kubectl(*own, "set-cluster", "elsewhere", "--server=https://127.0.0.1:9")
    cluster.kubectl(*own, "set-context", "elsewhere", "--cluster=elsewhere")
    cluster.kubectl(*own, "use-context", "elsewhere")
    registries.write_text(f'[[registry]]\nlocation = "{registry.partition("/")[0]}"\ninsecure = true\n')
    (folder / "helm").symlink_to(paths.bin_path("helm3"))
    path = f"{folder}{os.pathsep}{cluster.environment()['PATH']}"
    # The variable stands in for /etc/containers/registries.conf, which is this machine's.
    return {"PATH": path, "KUBECONFIG": str(kubeconfig), "CONTAINERS_REGISTRIES_CONF": str(registries)}


@pytest.fixture(scope="module")
def output(registry: str, surroundings: dict[str, str]) -> Iterator[str]:
    """What the demo printed. It came to a good end."""
    revision = _revision()
    command = ["make", "demo", f"CONTEXT={CONTEXT}", f"REGISTRY={registry}"]
    try:
        yield cluster.run(command, timeout=DEMO_SECONDS, extra=surroundings)
    finally:
        _clean_up(revision, registry)


def test_both_jobs_of_the_demo_succeed(output: str) -> None:
    assert {job["metadata"]["name"]: job["status"]["phase"] for job in _jobs()} == dict.fromkeys(JOBS, "Succeeded")
    assert f"kubectl get aej --namespace {JOB_NAMESPACE} --context {CONTEXT}" in output


def test_every_container_runs_an_image_from_the_registry(output: str, registry: str) -> None:
    pods = [pod for namespace in NAMESPACES for pod in cluster.listed("pods", namespace)]
    assert {pod["metadata"]["namespace"] for pod in pods} == set(NAMESPACES)
    for pod in pods:
        containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        statuses = [*pod["status"].get("initContainerStatuses", []), *pod["status"]["containerStatuses"]]
        assert [entry["image"] for entry in containers if not entry["image"].startswith(f"{registry}/")] == []
        assert {entry["imagePullPolicy"] for entry in containers} == {"Always"}
        assert [entry["imageID"] for entry in statuses if not entry["imageID"].startswith(f"{registry}/")] == []


def test_what_a_job_says_it_ran_can_be_pulled_again(output: str, registry: str) -> None:
    host, _, path = registry.partition("/")
    for job in _jobs():
        images = job["status"]["ran"]["images"]
        assert images
        for image in images.values():
            name, _, digest = image.rpartition("/")[2].partition("@")
            manifest = urllib.request.Request(f"http://{host}/v2/{path}/{name}/manifests/{digest}", method="HEAD")
            manifest.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(manifest, timeout=10) as answer:
                assert answer.status == 200


def _jobs() -> list[Object]:
    return cluster.listed("agentevaljobs.evals.nhx.io", JOB_NAMESPACE)


def _revision() -> int | None:
    """Of the operator that an earlier demo left behind."""
    here = (f"--namespace={OPERATOR_NAMESPACE}", f"--filter=^{RELEASE}$", "--output=json")
    releases = json.loads(cluster.helm("list", *here))
    return int(releases[0]["revision"]) if releases else None


def _clean_up(revision: int | None, registry: str) -> None:
    here = (f"--namespace={OPERATOR_NAMESPACE}", "--wait")
    cluster.kubectl("delete", "namespace", MODEL_NAMESPACE, JOB_NAMESPACE, "--ignore-not-found", timeout=HELM_SECONDS)
    if revision is None:
        cluster.helm("uninstall", RELEASE, *here, "--ignore-not-found", timeout=HELM_SECONDS)
        cluster.kubectl("delete", "namespace", OPERATOR_NAMESPACE, "--ignore-not-found", timeout=HELM_SECONDS)
    else:
        cluster.helm("rollback", RELEASE, str(revision), *here, timeout=HELM_SECONDS)
    pulled = subprocess.run(containerd.ctr_command("images", "ls", "--quiet"), capture_output=True, text=True)
    ours = [name for name in pulled.stdout.split() if name.startswith(f"{registry}/")]
    if ours:
        subprocess.run(containerd.ctr_command("images", "rm", *ours), capture_output=True, timeout=HELM_SECONDS)
