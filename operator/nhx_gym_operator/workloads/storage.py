"""The claim that keeps a job's results."""

from __future__ import annotations

from typing import Any

from . import names
from .workload import Workload


def results_claim(workload: Workload) -> dict[str, Any] | None:
    """The claim to create, owned by the job; None where the user named one or chose an emptyDir."""
    claim = workload.spec.results.persistent_volume_claim
    if claim is None or claim.claim_name:
        return None
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": claim.size}},
    }
    if claim.storage_class_name:
        spec["storageClassName"] = claim.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": workload.metadata(names.claim_name(workload.name), names.evaluator_role(workload.placement)),
        "spec": spec,
    }
