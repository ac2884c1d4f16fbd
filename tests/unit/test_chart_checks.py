"""What the chart and the operator make, judged by kube-score and checkov. Each finding is mended, or has its reason
here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import modules
from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.workloads import canary, network, pods, storage
from support.controller_values import API, job, settings, workload
from unit.test_chart import render

nightly = pytest.mark.nightly
"""checkov brings a hundred packages, and takes a minute."""
GOOD = 7
"""kube-score's AlmostOK; below are WARNING and CRITICAL."""

EVERYWHERE = {
    "container-image-pull-policy": "an image is named by version or digest, and may be on the node already",
    "container-security-context-user-group-id": "uid 1000 owns nothing on a node: nothing of one is mounted, and files "
    "of claims that users made before are this uid's",
}
CHART = EVERYWHERE | {
    "pod-networkpolicy": "the operator needs the API server, which no policy can name, and serves /healthz and counts",
    "container-resources": "a CPU limit would slow its start, when all jobs are read; memory and disk are bounded",
}
OF_JOBS = EVERYWHERE | {
    "container-resources": "trusted containers may use a CPU that nobody else wants; a gym host is bounded",
    "container-ephemeral-storage-request-and-limit": "of an init container: the main one's counts for the pod; of the "
    "canaries: they run the operator's own code for some seconds, under a deadline",
    "pod-networkpolicy": "an evaluator's way out is evaluatorEgress, which an administrator sets",
    "pod-probes": "an evaluator's Service publishes it before it is ready, and its hosts wait for it by themselves",
}


CHECKOV = Path(__file__).resolve().parents[2] / ".venv/checks/bin/checkov"
CHECKOV_EVERYWHERE = {
    "CKV_K8S_11": CHART["container-resources"] + "; of a job's pods, " + OF_JOBS["container-resources"],
    "CKV_K8S_15": EVERYWHERE["container-image-pull-policy"],
    "CKV_K8S_40": EVERYWHERE["container-security-context-user-group-id"],
    "CKV_K8S_43": "the chart names its images by the version that it is of; an administrator may set digests",
}
CHECKOV_CHART = CHECKOV_EVERYWHERE | {
    "CKV_K8S_38": "the operator is who speaks with the API server; no pod of a job is given a token",
    "CKV2_K8S_6": CHART["pod-networkpolicy"],
}
CHECKOV_OF_JOBS = CHECKOV_EVERYWHERE | {
    "CKV_K8S_8": "a pod that evaluates is not started anew for being slow: deadlines and the idle limit end it",
    "CKV_K8S_9": OF_JOBS["pod-probes"],
}


def findings(*objects: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Check, object and container of all that kube-score finds wanting."""
    binary = modules.binary("kube-score")
    assert binary.is_file(), "make test-unit builds it"
    command = [str(binary), "score", "--output-format=json", "--output-version=v2", "--kubernetes-version=v1.32", "-"]
    done = subprocess.run(command, input=yaml.safe_dump_all(objects), capture_output=True, text=True, timeout=120)
    judged = json.loads(done.stdout)
    assert judged, done.stderr
    return {
        (check["check"]["id"], each["object_meta"]["name"], comment["path"])
        for each in judged
        for check in each["checks"]
        if not check["skipped"] and check["grade"] < GOOD
        for comment in check["comments"] or ()
    }


def of_checkov(folder: Path, *objects: dict[str, Any]) -> set[str]:
    """Ids of the checks that any of the objects fails. One without a namespace is the release's."""
    assert CHECKOV.is_file(), "make test-checks installs it"
    placed = [each | {"metadata": {"namespace": "operators"} | each["metadata"]} for each in objects]
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(placed))
    command = [CHECKOV, "--directory", folder, "--framework=kubernetes", "--skip-download", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    judged = json.loads(done.stdout)
    assert judged["summary"]["passed"] and not judged["summary"]["parsing_errors"], done.stderr
    return {check["check_id"] for check in judged["results"]["failed_checks"]}


def made_for_jobs() -> list[dict[str, Any]]:
    sandboxed = workload()
    colocated = workload(job("colocated"), placement=Placement.COLOCATED, cluster_ip=None, runtime_class_name=None)
    measured = canary.Canary("op-canary", "operators", settings(), "gvisor", API, 900.0, owner_uid="u")
    return [
        *pods.job_pods(sandboxed),
        network.evaluator_service(sandboxed),
        *network.network_policies(sandboxed),
        *filter(None, [storage.own_claim(sandboxed)]),
        pods.colocated_pod(colocated),
        *network.network_policies(colocated),
        canary.listener(measured),
        canary.client(measured, "10.1.0.7"),
        *canary.policies(measured, shut=True),
    ]


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["team"], "metrics": {"enabled": True}}])
def test_all_that_is_found_in_the_chart_is_explained(values: dict[str, Any]) -> None:
    objects = [each for each in render(**values) if each["kind"] != "CustomResourceDefinition"]
    found = {check for check, _, _ in findings(*objects)}
    assert found - CHART.keys() == set()
    assert CHART.keys() - found == set(), "what is no longer found needs no explanation"


def test_all_that_is_found_in_a_jobs_objects_is_explained() -> None:
    found = findings(*made_for_jobs())
    assert {check for check, _, _ in found} - OF_JOBS.keys() == set()
    assert OF_JOBS.keys() - {check for check, _, _ in found} == set(), "what is no longer found needs no explanation"
    assert {entry for entry in found if entry[0] == "container-resources" and entry[2] == "gym-host"} == set()


@nightly
@pytest.mark.parametrize(("what", "explained"), [("chart", CHECKOV_CHART), ("jobs", CHECKOV_OF_JOBS)])
def test_all_that_checkov_finds_is_explained(tmp_path: Path, what: str, explained: dict[str, str]) -> None:
    chart = [each for each in render(watchNamespaces=["team"]) if each["kind"] != "CustomResourceDefinition"]
    found = of_checkov(tmp_path, *(chart if what == "chart" else made_for_jobs()))
    assert found - explained.keys() == set()
    assert explained.keys() - found == set(), "what is no longer found needs no explanation"


def boundless_host() -> dict[str, Any]:
    host = pods.host_pod(workload(), 0)
    (container,) = host["spec"]["containers"]
    container |= {"resources": {}, "securityContext": {"privileged": True}}
    return host


def test_a_pod_without_any_bound_is_found_out() -> None:
    """The checks check."""
    found = {check for check, _, where in findings(boundless_host()) if where == "gym-host"}
    assert {"container-resources", "container-security-context-privileged"} <= found


@nightly
def test_checkov_finds_out_a_pod_without_any_bound(tmp_path: Path) -> None:
    assert {"CKV_K8S_13", "CKV_K8S_16"} <= of_checkov(tmp_path, boundless_host()), "no memory limit, and privileged"
