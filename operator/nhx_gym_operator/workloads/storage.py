"""Where a job's results are kept."""

from __future__ import annotations

from typing import Any

from ..api.constants import CLAIM_LOCATION, IMAGE_ANNOTATION, JOB_UID_LABEL, RETAINED_LABEL
from ..api.results import Results
from . import names
from .workload import Workload


def own_claim_name(results: Results, job: str, uid: str) -> str | None:
    """Name of the claim that is made for a job; None where the user named one or chose no claim."""
    claim = results.persistent_volume_claim
    if claim is None or claim.claim_name:
        return None
    return names.claim_name(job, uid if claim.is_retained else "")


def results_claim_name(workload: Workload) -> str | None:
    """Name of the claim that keeps the results, the user's or the job's own; None for an emptyDir."""
    claim = workload.spec.results.persistent_volume_claim
    if claim is None:
        return None
    return claim.claim_name or own_claim_name(workload.spec.results, workload.name, workload.uid)


def results_location(workload: Workload) -> str:
    """`persistentVolumeClaim/NAME` or `emptyDir`: what the status shows."""
    claim = results_claim_name(workload)
    return f"{CLAIM_LOCATION}{claim}" if claim else "emptyDir"


def is_retained_by(claim: dict[str, Any], uid: str) -> bool:
    """Whether a claim without an owner was made for that job. Its name holds the job's UID too."""
    labels = claim["metadata"].get("labels") or {}
    return labels.get(RETAINED_LABEL) == "true" and labels.get(JOB_UID_LABEL) == uid


def own_claim(workload: Workload) -> dict[str, Any] | None:
    """The claim to create; None where the user named one or chose no claim. The job owns it unless it is to stay."""
    claim = workload.spec.results.persistent_volume_claim
    name = own_claim_name(workload.spec.results, workload.name, workload.uid)
    if claim is None or name is None:
        return None
    metadata = workload.metadata(name, names.evaluator_role(workload.placement))
    if claim.is_retained:
        del metadata["ownerReferences"]
        metadata["labels"][RETAINED_LABEL] = "true"
        metadata["annotations"][IMAGE_ANNOTATION] = workload.images["evaluator"]
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": claim.size}},
    }
    if claim.storage_class_name:
        spec["storageClassName"] = claim.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }
