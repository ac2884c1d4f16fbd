"""Where a job's result bundle goes."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from .origins import kubernetes, ours
from .resource import ApiModel, rule, validated

QUANTITY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"


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
        )
    )

    size: Annotated[str | None, ours("requests.storage of the claim")] = Field(
        default=None,
        max_length=32,
        pattern=QUANTITY,
        description="Size of a new claim, e.g. `1Gi`. It belongs to the job and goes with it.",
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
