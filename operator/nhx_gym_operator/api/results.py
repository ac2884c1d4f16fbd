"""Where a job's result bundle goes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .origins import kubernetes, ours
from .resource import ApiModel, rule, validated

QUANTITY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"


class Retention(StrEnum):
    """What becomes of a job's own claim when the job is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class ClaimResults(ApiModel):
    """A PersistentVolumeClaim for the results."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "has(self.claimName) != has(self.size)",
                "set size for a new claim or claimName for an existing one, not both",
            ),
            rule(
                "!has(self.storageClassName) || has(self.size)",
                "storageClassName belongs to a new claim; with claimName leave it out",
                field=".storageClassName",
            ),
            rule(
                "!has(self.retention) || self.retention == 'Retain' || has(self.size)",
                "a claim of yours is never deleted; leave retention out or set it to Retain",
                field=".retention",
            ),
        )
    )

    size: Annotated[str | None, ours("requests.storage of the claim")] = Field(
        default=None,
        max_length=32,
        pattern=QUANTITY,
        description="Size of a new claim, e.g. `1Gi`. It belongs to the job; `retention` says whether it goes with it.",
    )
    storage_class_name: Annotated[str | None, kubernetes("PersistentVolumeClaimSpec.storageClassName")] = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="StorageClass of a new claim. Unset: the cluster's default.",
    )
    claim_name: Annotated[str | None, kubernetes("PersistentVolumeClaimVolumeSource.claimName")] = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="An existing claim of the job's namespace, used by this job alone. It stays "
        "when the job is deleted.",
    )
    retention: Annotated[Retention | None, ours("what becomes of the claim when the job is deleted")] = Field(
        default=None,
        description="`Delete`: a new claim goes with the job. `Retain`: it stays, with the label "
        "`evals.nhx.io/retained=true`, until somebody deletes it. A claim named by `claimName` always stays. "
        "Unset: Delete for a new claim.",
    )

    @property
    def is_retained(self) -> bool:
        """Whether a new claim outlives its job."""
        return self.retention is Retention.RETAIN


class EmptyDirResults(ApiModel):
    """Results live as long as the evaluator pod does."""


class Results(ApiModel):
    """Where the result bundle goes."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "!(has(self.persistentVolumeClaim) && has(self.emptyDir))",
                "set one of persistentVolumeClaim and emptyDir",
            )
        )
    )

    persistent_volume_claim: Annotated[ClaimResults | None, kubernetes("Volume.persistentVolumeClaim")] = Field(
        default=None,
        description="Keep the bundle on a claim. Unset: in an emptyDir.",
    )
    empty_dir: Annotated[EmptyDirResults | None, kubernetes("Volume.emptyDir")] = Field(
        default=None,
        description="Keep the bundle in the evaluator pod only. The aggregates stay in the status.",
    )
