"""The reader: a short-lived pod that mounts a job's claim read-only, so that its files can be copied out."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..api import wire
from ..api.constants import API_VERSION, CONTAINER_EVALUATE, JOB_KIND, MANAGED_BY_LABEL
from .jobs import Body, Job, container_spec, container_state
from .kubectl import Kubectl, KubectlError, UserError

CONTAINER = "reader"
VOLUME = "results"
START_TIMEOUT_SECONDS = 180.0
"""An image that the node has yet to pull is given this long."""
_POLL_SECONDS = 0.5
_DELETE_TIMEOUT_SECONDS = 20.0

# What the evaluator's pod says about where pods of this job may run and what they pull with.
_COPIED = ("tolerations", "nodeSelector", "affinity", "imagePullSecrets", "priorityClassName")
_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
# Reasons of a waiting container that do not go away by waiting.
_HOPELESS = {
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}


def choose_image(job: Job, evaluator: Body | None, asked: str | None) -> str:
    """The image that the job's evaluator ran, so that nothing new has to be pulled or allowed."""
    if asked:
        return asked
    container = container_spec(evaluator, CONTAINER_EVALUATE) if evaluator else None
    if container:
        return container["image"]
    raise UserError(
        f"the evaluator pod of job `{job.name}` is gone, so its image is not known. "
        "Pass the nhx-tasks image that the operator uses with --image."
    )


def reader_pod(job: Job, claim: str, image: str, evaluator: Body | None, lifetime_seconds: int) -> Body:
    """The manifest. It carries none of the operator's labels: the reader is no part of the job's run."""
    spec = evaluator["spec"] if evaluator else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name[:40].rstrip('.-')}-reader-{secrets.token_hex(4)}",
            "namespace": job.namespace,
            "labels": {MANAGED_BY_LABEL: "kubectl-nhx"},
            "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": JOB_KIND, "name": job.name, "uid": job.uid, "controller": False}
            ],
        },
        "spec": {
            **{field: spec[field] for field in _COPIED if field in spec},
            "restartPolicy": "Never",
            "activeDeadlineSeconds": lifetime_seconds,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {**_SECURITY, **(spec.get("securityContext") or {})},
            "containers": [_container(image, evaluator, lifetime_seconds)],
            "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


def _container(image: str, evaluator: Body | None, lifetime_seconds: int) -> Body:
    container = {
        "name": CONTAINER,
        "image": image,
        "args": ["sleep", str(lifetime_seconds)],
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # Only the mount is read-only: some storage drivers refuse one volume mounted both ways on a node.
        "volumeMounts": [{"name": VOLUME, "mountPath": wire.RESULTS_DIR, "readOnly": True}],
    }
    original = container_spec(evaluator, CONTAINER_EVALUATE) if evaluator else None
    if original and original["image"] == image:
        container["imagePullPolicy"] = original.get("imagePullPolicy") or "IfNotPresent"
    return container


@contextmanager
def running_reader(kubectl: Kubectl, manifest: Body) -> Iterator[str]:
    """The name of a reader that runs. It is removed on the way out, whatever happened inside."""
    name = manifest["metadata"]["name"]
    try:
        _create(kubectl, manifest)
        _wait_until_running(kubectl, name)
        yield name
    finally:
        _remove(kubectl, name)


def _create(kubectl: Kubectl, manifest: Body) -> None:
    try:
        kubectl.text("create", "--filename=-", stdin=json.dumps(manifest))
    except KubectlError as error:
        if error.forbidden:
            raise UserError(
                f"the reader pod was refused: {error.stderr}\nA download needs the rights to create and delete pods "
                "and to create pods/exec in the job's namespace, and room in its quota for one small pod."
            ) from None
        raise


def _wait_until_running(kubectl: Kubectl, name: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        pod = kubectl.json("get", "pod", name)
        state = container_state(pod, CONTAINER)
        if "running" in state:
            return
        obstacle = _obstacle(pod, state)
        waiting = state.get("waiting") or {}
        if "terminated" in state or waiting.get("reason") in _HOPELESS:
            raise UserError(f"the reader pod did not start: {obstacle}")
        if time.monotonic() > deadline:
            raise UserError(f"the reader pod did not start within {START_TIMEOUT_SECONDS:.0f} s: {obstacle}")
        time.sleep(_POLL_SECONDS)


def _obstacle(pod: Body, state: Body) -> str:
    detail = state.get("waiting") or state.get("terminated") or {}
    parts = [detail.get("reason"), detail.get("message")]
    if not detail:
        conditions = (pod.get("status") or {}).get("conditions") or []
        parts = [c.get("message") for c in conditions if c["type"] == "PodScheduled" and c["status"] != "True"]
    said = ": ".join(part for part in parts if part)
    return said or f"its phase is {(pod.get('status') or {}).get('phase') or 'unknown'}"


def _remove(kubectl: Kubectl, name: str) -> None:
    """In a process group of its own, so that a second Ctrl-C does not stop the removal."""
    command = kubectl.command("delete", "pod", name, "--ignore-not-found", "--wait=false")
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, start_new_session=True, timeout=_DELETE_TIMEOUT_SECONDS
        )
        problem = result.stderr.strip() if result.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer in {_DELETE_TIMEOUT_SECONDS:.0f} s"
    if problem:
        print(
            f"warning: the reader pod `{name}` could not be removed ({problem}). It ends by itself.",
            file=sys.stderr,
        )
