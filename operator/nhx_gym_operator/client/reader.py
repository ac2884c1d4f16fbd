"""The reader: a short-lived pod that holds a job's bundle, so that its files can be copied out.

It mounts the job's claim read-only, or fetches the bundle from the job's bucket with the job's own credentials. So the
user's machine needs no key, and no way to a server that may be reachable from inside the cluster only.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..api import pod_facts, pod_rules
from ..api.constants import API_VERSION, CONTAINER_EVALUATE, JOB_KIND, MANAGED_BY_LABEL
from ..api.results import ObjectStoreResults
from ..api.wire import mounts, plans
from ..api.wording import terminal_safe
from .errors import KubectlError, UserError
from .jobs import Body, Job
from .kubectl import Kubectl

CONTAINER = "reader"
FETCH = "fetch"
VOLUME = "results"
WHOLE_BUNDLE_SECONDS = 1800
FEW_FILES_SECONDS = 600
"""How long a reading pod lives at the most, for all of a bundle or for its report or logs. Ours."""
START_TIMEOUT_SECONDS = 180.0
"""An image that the node has yet to pull is given this long."""
_POLL_SECONDS = 0.5
_DELETE_TIMEOUT_SECONDS = 20.0

# What the evaluator's pod says about where pods of this job may run and what they pull with.
_COPIED = ("tolerations", "nodeSelector", "affinity", "imagePullSecrets", "priorityClassName")
# Reasons of a waiting container that do not go away by waiting.
_HOPELESS = {
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}


@dataclass(frozen=True)
class Contents:
    """What a reader shows at `RESULTS_DIR`: a volume, and what fills it first, if it is not there yet."""

    volume: Body
    fetch: plans.FetchPlan | None = None
    keys: tuple[tuple[Body, Body], ...] = ()
    """Volumes and mounts of the credentials that fetching takes."""


def of_claim(claim: str) -> Contents:
    return Contents({"persistentVolumeClaim": {"claimName": claim}})


def of_bucket(store: ObjectStoreResults, path: str) -> Contents:
    """`path` is the bundle's folder below the store's prefix."""
    plan = plans.FetchPlan(address=store.address(store.prefix), path=path, target=f"{mounts.RESULTS_DIR}/{path}")
    return Contents({"emptyDir": {}}, plan, tuple(store.volumes(mounts.OBJECT_STORE_DIR)))


def choose_image(job: Job, evaluator: Body | None, asked: str | None) -> str:
    """The image that the job's evaluator ran, so that nothing new has to be pulled or allowed."""
    if asked:
        return asked
    container = pod_facts.container(evaluator, CONTAINER_EVALUATE) if evaluator else None
    if container:
        return container["image"]
    image = (job.status.get("results") or {}).get("image")
    if image:
        return image
    raise UserError(
        f"nothing is left of job `{job.name}` that names its image. "
        "Pass the nhx-tasks image that the operator uses with --image."
    )


def reader_pod(job: Job, contents: Contents, image: str, evaluator: Body | None, lifetime_seconds: int) -> Body:
    """The manifest. It carries none of the operator's labels: the reader is no part of the job's run."""
    spec = evaluator["spec"] if evaluator else {}
    metadata = {
        "name": f"{job.name[:40].rstrip('.-')}-reader-{secrets.token_hex(4)}",
        "namespace": job.namespace,
        "labels": {MANAGED_BY_LABEL: "kubectl-nhx"},
        **({"ownerReferences": [_owner(job)]} if job.uid else {}),
    }
    return pod_rules.pod(
        metadata,
        **{field: spec[field] for field in _COPIED if field in spec},
        activeDeadlineSeconds=lifetime_seconds,
        terminationGracePeriodSeconds=1,
        securityContext=pod_rules.POD_SECURITY | (spec.get("securityContext") or {}),
        initContainers=[_fetch(contents, image, evaluator)] if contents.fetch else [],
        containers=[_reader(image, evaluator, lifetime_seconds)],
        volumes=[{"name": VOLUME, **contents.volume}, *(volume for volume, _ in contents.keys)],
    )


def _reader(image: str, evaluator: Body | None, lifetime_seconds: int) -> Body:
    # Only the mount is read-only: some storage drivers refuse one volume mounted both ways on a node.
    mount = {"name": VOLUME, "mountPath": mounts.RESULTS_DIR, "readOnly": True}
    return pod_rules.container(
        CONTAINER,
        image=image,
        imagePullPolicy=_pull_policy(image, evaluator),
        args=["sleep", str(lifetime_seconds)],
        mounts=[mount],
        resources=_resources("256Mi"),
    )


def _fetch(contents: Contents, image: str, evaluator: Body | None) -> Body:
    assert contents.fetch is not None
    return pod_rules.container(
        FETCH,
        image=image,
        imagePullPolicy=_pull_policy(image, evaluator),
        args=["python", "-m", "nhx_gym_operator.evaluator", "fetch"],
        env=[pod_rules.variable(plans.FETCH_PLAN_ENV, contents.fetch.model_dump_json())],
        mounts=[{"name": VOLUME, "mountPath": mounts.RESULTS_DIR}, *(mount for _, mount in contents.keys)],
        resources=_resources("512Mi"),
        terminationMessagePolicy="FallbackToLogsOnError",
    )


def _resources(memory: str) -> Body:
    return {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": memory}}


def _pull_policy(image: str, evaluator: Body | None) -> str | None:
    """That of the evaluator for its own image; the cluster's default for another."""
    original = pod_facts.container(evaluator, CONTAINER_EVALUATE) if evaluator else None
    if not original or original["image"] != image:
        return None
    return original.get("imagePullPolicy") or "IfNotPresent"


def _owner(job: Job) -> Body:
    return {"apiVersion": API_VERSION, "kind": JOB_KIND, "name": job.name, "uid": job.uid, "controller": False}


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
        state, fetching = pod_facts.state(pod, CONTAINER), pod_facts.state(pod, FETCH)
        if "running" in state:
            return
        if "running" in fetching:
            # It takes as long as it takes; the pod's own lifetime bounds it.
            deadline = time.monotonic() + START_TIMEOUT_SECONDS
        ended = fetching.get("terminated") or {}
        if ended.get("exitCode"):
            raise UserError(f"the bundle could not be fetched: {ended.get('message') or ended.get('reason')}")
        if fetching.get("waiting"):
            state = fetching
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
    try:
        kubectl.apart().text(
            "delete", "pod", name, "--ignore-not-found", "--wait=false", timeout=_DELETE_TIMEOUT_SECONDS
        )
    except UserError as error:
        words = f"warning: the reader pod `{name}` could not be removed. It ends by itself. {error}"
        print(terminal_safe(words), file=sys.stderr)
