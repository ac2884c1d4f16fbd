"""The one value from which all of a job's objects are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..api.constants import API_VERSION, JOB_ANNOTATION, JOB_KIND, Placement, Role
from ..api.fileset import FileSetSpec
from ..api.job import JobSpec
from ..api.wire.endpoints import EVALUATOR_PORT, http_url
from . import names
from .options import WorkloadOptions


@dataclass(frozen=True)
class ConfigMapFiles:
    """Files out of one ConfigMap: `items` are pairs of key and relative path."""

    name: str
    items: tuple[tuple[str, str], ...]

    def volume(self) -> dict[str, Any]:
        return {"name": self.name, "items": [{"key": key, "path": path} for key, path in self.items]}


@dataclass(frozen=True)
class StagedFiles:
    """A FileSet that a stage container of the evaluator's pod brings in."""

    name: str
    uid: str
    generation: int
    spec: FileSetSpec
    config_map: ConfigMapFiles | None = None
    """Its files, for a set that is a ConfigMap; of the other sources only a pod knows them."""
    file: str | None = None
    """The one file that holds a dataset's rows; None for an environment."""


@dataclass(frozen=True)
class ApiAddresses:
    """Where the cluster's API answers, as host and port. None: not known, e.g. outside a cluster."""

    service: tuple[str, int] | None = None
    """Its Service, as pods know it."""
    server: tuple[str, int] | None = None
    """The API server's own address, mostly on a node."""


@dataclass(frozen=True)
class Workload:
    """A job as the builders see it: what the user wrote, where it runs, and what was resolved for it."""

    name: str
    namespace: str
    uid: str
    spec: JobSpec
    options: WorkloadOptions
    key: bytes
    """The operator's key, from which tokens are derived."""
    placement: Placement
    runtime_class_name: str | None = None
    """Of host pods; None runs them under the cluster's default runtime."""
    attempt: int = 1
    cluster_ip: str | None = None
    """Address of the evaluator's Service; needed for host pods."""
    api: ApiAddresses = field(default_factory=ApiAddresses)
    """Where the cluster's API is, which a sandbox must not reach."""
    dataset: ConfigMapFiles | StagedFiles | None = None
    """One file; None for a bundled dataset."""
    environment: StagedFiles | None = None
    restarts: bool = False
    """Whether the evaluator's container is to be started again in its pod, by `restartPolicyRules`."""

    @property
    def evaluator_url(self) -> str:
        if not self.cluster_ip:
            raise ValueError(f"the Service of job {self.namespace}/{self.name} has no address yet")
        return http_url(self.cluster_ip, EVALUATOR_PORT)

    @property
    def images(self) -> dict[str, str]:
        """Image reference by role, the roles named as in `status.ran.images`."""
        images = self.options.images
        if self.placement is Placement.COLOCATED:
            return {"evaluator": images.gym_tasks}
        return {"evaluator": images.tasks, "gymHost": images.gym_host}

    @property
    def hosts(self) -> int:
        return self.spec.hosts if self.placement is Placement.SANDBOXED else 0

    def metadata(self, name: str, role: Role, attempt: int | None = None) -> dict[str, Any]:
        """Metadata of a child. `blockOwnerDeletion` is off: a foreground deletion of the job waits for
        no child, and setting it would need the right to update the job's finalizers."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": names.child_labels(self.uid, role, attempt),
            "annotations": {JOB_ANNOTATION: self.name},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": JOB_KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        }
