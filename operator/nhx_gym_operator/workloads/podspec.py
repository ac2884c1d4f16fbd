"""What every pod that the operator makes has in common: restricted Pod Security and the administrator's settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ..api.constants import Role
from ..api.object_store import SECRET_MODE
from .options import EPHEMERAL_STORAGE, PodOptions, WorkloadOptions
from .workload import Workload

Manifest = dict[str, Any]

EVALUATOR_MODULE = "nhx_gym_operator.evaluator"
USER_ID = 1000
SHUTDOWN_MARGIN_SECONDS = 30
"""Between the end of Gym's own shutdown grace and the kubelet's kill: time to write the outcome."""

_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
# A sidecar that never ends would outlive the run, and in a host pod it would be a hole in the sandbox.
_NO_INJECTION = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "kuma.io/sidecar-injection": "disabled",
}
_KEEP = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


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
    """A pod that passes the restricted Pod Security Standard, with the administrator's settings in it."""
    labels = settings.labels | _NO_INJECTION | metadata["labels"]
    annotations = settings.annotations | _NO_INJECTION | metadata["annotations"]
    body = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": dict(_POD_SECURITY),
        "imagePullSecrets": settings.image_pull_secrets,
        "tolerations": settings.tolerations,
        "nodeSelector": settings.node_selector,
        "affinity": settings.affinity,
        "priorityClassName": settings.priority_class_name,
    } | spec
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"labels": labels, "annotations": annotations},
        "spec": {field: value for field, value in body.items() if value not in (None, "", [], {})},
    }


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
    init: bool = False,
) -> Manifest:
    """A container that runs `python -m <module> <command>` under the image's init. The last log lines
    speak for an init container that wrote no message; a main one always writes its own."""
    body: Manifest = {
        "name": name,
        "image": image,
        "imagePullPolicy": options.image_pull_policy,
        "args": ["python", "-m", module, command],
        "env": list(env),
        "resources": resources,
        "securityContext": dict(_CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError" if init else "File",
        "volumeMounts": list(mounts),
    }
    if ports:
        body["ports"] = [{"containerPort": port, "protocol": "TCP"} for port in ports]
    return body


def value(name: str, text: str) -> Manifest:
    """A variable that holds `text` to the letter: the kubelet expands `$(NAME)` and halves `$$`."""
    return {"name": name, "value": text.replace("$", "$$")}


def plan_in[Plan: BaseModel](pod: Manifest, container: str, variable: str, model: type[Plan]) -> Plan | None:
    """The plan that `value` put into a container's variable; None where there is none that can be read."""
    for entry in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
        if entry["name"] != container:
            continue
        for pair in entry.get("env", ()):
            if pair["name"] == variable and "value" in pair:
                return _parsed(pair["value"].replace("$$", "$"), model)
    return None


def _parsed[Plan: BaseModel](text: str, model: type[Plan]) -> Plan | None:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


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
