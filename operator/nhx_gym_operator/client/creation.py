"""Making a job, together with what it names and what is to go with it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from ..api.constants import API_VERSION, JOB_KIND, MANAGED_BY_LABEL
from . import interrupts
from .errors import KubectlError, Refused, UserError
from .jobs import JOB_RESOURCE, NOT_INSTALLED, Body, Job
from .kubectl import Kubectl

CONFIG_MAP_BYTES = 1024 * 1024 - 4096
"""What fits into one ConfigMap, with room for its own fields:
https://kubernetes.io/docs/concepts/configuration/configmap/ ("cannot exceed 1 MiB")."""
LEFTOVER_SECONDS = 20.0
"""How long what a deleted job of the same name had is waited for: it goes some moments after its job."""
_PAUSE_SECONDS = 0.5


def config_map(name: str, **contents: dict[str, str] | bool) -> Body:
    """`contents` are fields of a ConfigMap: `data`, `binaryData` (Base64), `immutable`. What is empty is left out."""
    metadata = {"name": name, "labels": {MANAGED_BY_LABEL: "kubectl-nhx"}}
    given = {field: value for field, value in contents.items() if value}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **given}


def create_job(kubectl: Kubectl, manifest: Body, own: Sequence[Body] = ()) -> Job:
    """The job as the API server took it; nothing that exists is overwritten. `own` is what it names and what goes with
    it, in its namespace.

    Those come after the job, which waits for them: only then is there an owner. Made before it, they would stay for
    ever where a client dies between, and giving them their owner later takes a right to change them that a user need
    not have. So the job's first event may say that they are missing. If one of them cannot be made, or Ctrl-C or
    SIGTERM comes before all are, the job is taken back: it would wait for them in vain. Raises UserError with what to
    change, and KeyboardInterrupt with a note on what became of the job.
    """
    kubectl = kubectl.apart()
    with interrupts.held() as check:
        try:
            job = Job(kubectl.json("create", "--filename=-", stdin=json.dumps(manifest, allow_nan=False)))
        except UserError as error:
            raise _refusal(error, manifest) from None
        kubectl = kubectl.in_namespace(job.namespace)
        owner = {"apiVersion": API_VERSION, "kind": JOB_KIND, "name": job.name, "uid": job.uid}
        try:
            for entry in own:
                check()
                _create_own(
                    kubectl, {**entry, "metadata": {**entry["metadata"], "ownerReferences": [owner]}}, job, check
                )
            check()
        except (UserError, KeyboardInterrupt) as error:
            error.add_note(_taken_back(kubectl, job))
            raise
    return job


def _create_own(kubectl: Kubectl, entry: Body, job: Job, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while True:
        try:
            kubectl.text("create", "--filename=-", stdin=json.dumps(entry))
            return
        except UserError as error:
            again = isinstance(error, KubectlError) and error.already_exists and time.monotonic() < deadline
            if not again:
                kind = Refused if isinstance(error, KubectlError) and error.refused else UserError
                raise kind(
                    f"{entry['kind']} `{entry['metadata']['name']}`, which job `{job.name}` needs, could not be made: "
                    f"{_words(error)}"
                ) from None
            check()
            time.sleep(_PAUSE_SECONDS)


def _taken_back(kubectl: Kubectl, job: Job) -> str:
    try:
        kubectl.text("delete", JOB_RESOURCE, job.name, "--ignore-not-found", "--wait=false")
    except UserError as error:
        return (
            f"Job `{job.name}` is there and lacks what it waits for; to remove it: `kubectl delete aej {job.name} "
            f"-n {job.namespace}` (trying that failed: {_words(error)})."
        )
    return f"Job `{job.name}` was removed again, and what was made for it goes with it."


def _refusal(error: UserError, manifest: Body) -> UserError:
    name = (manifest.get("metadata") or {}).get("name") or "NAME"
    if not isinstance(error, KubectlError):
        error.add_note(f"The job may have been made all the same: `kubectl get aej {name}` tells.")
        return error
    if error.already_exists:
        return Refused(f"there is a job `{name}` already. Give this one another name, or delete that one first.")
    return refusal(error)


def refusal(error: KubectlError) -> UserError:
    """The error as the clear no that it is, if it is one."""
    if error.missing_namespace:
        return Refused(f"there is no namespace `{error.missing_namespace}`: create it, or name another.")
    if error.kind_unknown:
        return Refused(NOT_INSTALLED)
    return Refused(error.stderr) if error.refused else error


def _words(error: UserError) -> str:
    if isinstance(error, KubectlError) and error.already_exists:
        return "one of that name exists, and is another's. Give the job another name, or remove that object."
    return error.stderr if isinstance(error, KubectlError) else str(error)
