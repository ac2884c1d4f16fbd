"""What every pod that the operator makes has in common beside the rules of all pods: the administrator's settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ..api import pod_rules
from ..api.constants import Role
from ..api.object_store import SECRET_MODE
from ..api.wire.plans import NODE_ADDRESSES_ENV
from ..api.wire.reports import FINAL_EXIT_CODES
from .options import EPHEMERAL_STORAGE, PodOptions, WorkloadOptions
from .workload import Workload

Manifest = dict[str, Any]

EVALUATOR_MODULE = "nhx_gym_operator.evaluator"
SHUTDOWN_MARGIN_SECONDS = 30
"""Between the end of Gym's own shutdown grace and the kubelet's kill: time to write the outcome."""

_KEEP = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


_AGAIN: Manifest = {
    "restartPolicy": "Never",
    "restartPolicyRules": [
        {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": list(FINAL_EXIT_CODES)}},
    ],
}
"""On by default from Kubernetes 1.35 (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy).
A 1.34 without the feature drops both fields; older ones refuse a pod with them."""


def pod(
    workload: Workload,
    name: str,
    role: Role,
    *,
    containers: Sequence[Manifest],
    init_containers: Sequence[Manifest] = (),
    volumes: Sequence[Manifest] = (),
    **spec: Any,
) -> Manifest:
    """A pod of the job. `spec` adds or replaces fields of the pod's spec; None leaves one out."""
    metadata = workload.metadata(name, role, workload.attempt)
    metadata["annotations"] = _KEEP | metadata["annotations"]
    grace = math.ceil(workload.spec.target.gym.shutdown_grace_seconds) + SHUTDOWN_MARGIN_SECONDS
    body = {"initContainers": list(init_containers), "containers": list(containers), "volumes": list(volumes)}
    return fenced(workload.options.pods, metadata, terminationGracePeriodSeconds=grace, **body | spec)


def fenced(settings: PodOptions, metadata: Manifest, **spec: Any) -> Manifest:
    """A pod as the rules have it, with the administrator's settings in it."""
    own = {
        "labels": settings.labels | metadata["labels"],
        "annotations": settings.annotations | metadata["annotations"],
    }
    given = {
        "imagePullSecrets": settings.image_pull_secrets,
        "tolerations": settings.tolerations,
        "nodeSelector": settings.node_selector,
        "affinity": settings.affinity,
        "priorityClassName": settings.priority_class_name,
    }
    return pod_rules.pod(metadata | own, **given | spec)


def container(
    options: WorkloadOptions,
    name: str,
    *,
    image: str,
    module: str,
    command: str,
    resources: Manifest,
    env: Sequence[Manifest] = (),
    mounts: Sequence[Manifest] = (),
    ports: Sequence[int] = (),
    log_speaks: bool = False,
    again: bool = False,
) -> Manifest:
    """A container that runs `python -m <module> <command>` under the image's init. With `log_speaks` its last log
    lines are its message where it wrote none itself; what evaluates or hosts always writes its own. With `again` it is
    started again in its place where it did not come to an end of its own, if the cluster can."""
    return pod_rules.container(
        name,
        image=image,
        imagePullPolicy=options.image_pull_policy,
        args=["python", "-m", module, command],
        env=list(env),
        resources=resources,
        terminationMessagePolicy="FallbackToLogsOnError" if log_speaks else "File",
        mounts=mounts,
        ports=[{"containerPort": port, "protocol": "TCP"} for port in ports],
        **(_AGAIN if again else {}),
    )


def plan_in[Plan: BaseModel](pod: Manifest, container: str, variable: str, model: type[Plan]) -> Plan | None:
    """The plan that a container's variable holds; None where there is none that can be read."""
    for entry in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
        if entry["name"] != container:
            continue
        for pair in entry.get("env", ()):
            text = pod_rules.text_of(pair)
            if pair["name"] == variable and text is not None:
                return _parsed(text, model)
    return None


def _parsed[Plan: BaseModel](text: str, model: type[Plan]) -> Plan | None:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


def node_addresses() -> Manifest:
    """What tells a pod the addresses of its node."""
    return {"name": NODE_ADDRESSES_ENV, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}}


def secret(name: str, secret_name: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name, "key": key}}}


def mount(volume: str, path: str, *, read_only: bool = False) -> Manifest:
    return {"name": volume, "mountPath": path} | ({"readOnly": True} if read_only else {})


def scratch(name: str, resources: Manifest) -> Manifest:
    """Space on the node for a container with these `resources`: no more than it may write there in all."""
    limit = resources.get("limits", {}).get(EPHEMERAL_STORAGE)
    return {"name": name, "emptyDir": {"sizeLimit": limit} if limit else {}}


def secret_volume(name: str, secret_name: str) -> Manifest:
    return {"name": name, "secret": {"secretName": secret_name, "defaultMode": SECRET_MODE}}
