"""Making a job, together with what it names and what is to go with it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from ..api.constants import API_VERSION, JOB_KIND, MANAGED_BY_LABEL
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

    Those come after the job, which waits for them: only then is there an owner. If one of them cannot be made, the job
    is taken back: it would wait for it in vain. Raises UserError with what to change.
    """
    try:
        job = Job(kubectl.json("create", "--filename=-", stdin=json.dumps(manifest, allow_nan=False)))
    except KubectlError as error:
        raise _explained(error, manifest) from None
    kubectl = kubectl.in_namespace(job.namespace)
    owner = {"apiVersion": API_VERSION, "kind": JOB_KIND, "name": job.name, "uid": job.uid}
    for entry in own:
        try:
            _create_own(kubectl, {**entry, "metadata": {**entry["metadata"], "ownerReferences": [owner]}})
        except UserError as error:
            kind = Refused if isinstance(error, KubectlError) and error.refused else UserError
            raise kind(
                f"{entry['kind']} `{entry['metadata']['name']}`, which job `{job.name}` needs, could not be made: "
                f"{_words(error)}\n{_taken_back(kubectl, job)}"
            ) from None
    return job


def _create_own(kubectl: Kubectl, entry: Body) -> None:
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while True:
        try:
            kubectl.text("create", "--filename=-", stdin=json.dumps(entry))
            return
        except KubectlError as error:
            if not error.already_exists or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def _taken_back(kubectl: Kubectl, job: Job) -> str:
    try:
        kubectl.text("delete", JOB_RESOURCE, job.name, "--ignore-not-found", "--wait=false")
    except UserError as error:
        return (
            f"The job is there and waits for it; to remove it: `kubectl delete aej {job.name} -n {job.namespace}` "
            f"(trying that failed: {_words(error)})."
        )
    return "The job was removed again."


def _explained(error: KubectlError, manifest: Body) -> UserError:
    if error.already_exists:
        name = (manifest.get("metadata") or {}).get("name")
        return Refused(f"there is a job `{name}` already. Give this one another name, or delete that one first.")
    if error.kind_unknown:
        return Refused(NOT_INSTALLED)
    return Refused(error.stderr) if error.refused else error


def _words(error: UserError) -> str:
    if isinstance(error, KubectlError) and error.already_exists:
        return "one of that name exists, and is another's. Give the job another name, or remove that object."
    return error.stderr if isinstance(error, KubectlError) else str(error)
