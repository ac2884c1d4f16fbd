"""What holds for every pod of this project, whoever makes it: the operator, or a user's `kubectl nhx`.

Each passes the restricted Pod Security Standard
(https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted), has no token of the cluster, and
nothing injected into it. Pure: values in, manifests out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Manifest = dict[str, Any]

USER_ID = 1000
"""User and group of every process, and of every file on a job's volumes."""
POD_SECURITY: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
# A sidecar that never ends would outlive the run, and in a host pod it would be a hole in the sandbox.
_NO_INJECTION = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "kuma.io/sidecar-injection": "disabled",
}


def pod(metadata: Manifest, **spec: Any) -> Manifest:
    """`spec` adds or replaces fields of the pod's spec; one that is None or empty is left out."""
    body = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": dict(POD_SECURITY),
    } | spec
    marks = {field: metadata.get(field, {}) | _NO_INJECTION for field in ("labels", "annotations")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | marks,
        "spec": {field: value for field, value in body.items() if value not in (None, "", [], {})},
    }


def container(
    name: str, *, image: str, args: Sequence[str], resources: Manifest, mounts: Sequence[Manifest], **more: Any
) -> Manifest:
    """`more` are further fields of the container; one that is None or empty is left out."""
    return {
        "name": name,
        "image": image,
        "args": list(args),
        "resources": resources,
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": list(mounts),
    } | {field: value for field, value in more.items() if value not in (None, "", [])}


def variable(name: str, text: str) -> Manifest:
    """One that holds `text` to the letter: the kubelet expands `$(NAME)` and halves `$$`."""
    return {"name": name, "value": text.replace("$", "$$")}


def text_of(variable: Manifest) -> str | None:
    """What `variable` was made of; None for one whose value comes from elsewhere."""
    return variable["value"].replace("$$", "$") if "value" in variable else None
