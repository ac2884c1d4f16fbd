"""Where a job's result bundle goes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .object_store import BucketSpec
from .origins import kubernetes, ours
from .resource import OBJECT_NAME_LENGTH, OBJECT_NAME_PATTERN, WEEK_SECONDS, ApiModel, rule, validated

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
        max_length=OBJECT_NAME_LENGTH,
        pattern=OBJECT_NAME_PATTERN,
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


class ObjectStoreResults(BucketSpec):
    """A bucket that the finished bundle is brought to."""

    prefix: Annotated[str, ours("folder in the bucket")] = Field(
        default="",
        max_length=512,
        description="Folder in the bucket; the bundle is at `PREFIX/NAMESPACE/JOB-UID/attempt-N` in it. Empty: the "
        "bucket's root.",
        json_schema_extra=validated(
            rule(
                "self == '' || (!self.startsWith('/') && !self.split('/').exists(s, s == '' || s == '.' || s == '..'))",
                "prefix must be a relative path without empty, '.' or '..' parts, and without '/' at its end",
            )
        ),
    )
    timeout_seconds: Annotated[float, ours("deadline of the upload", default="ours")] = Field(
        default=1800.0, gt=0, le=WEEK_SECONDS, description="Longest time for the upload, its retries included."
    )


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
        description="Keep the bundle, and the record of finished rollouts, on a claim. Unset: in an emptyDir.",
    )
    empty_dir: Annotated[EmptyDirResults | None, kubernetes("Volume.emptyDir")] = Field(
        default=None,
        description="Keep the bundle in the evaluator pod only. The aggregates stay in the status.",
    )
    object_store: Annotated[ObjectStoreResults | None, ours("results in an S3 bucket")] = Field(
        default=None,
        description="Bring the finished bundle to a bucket as well. The record of finished rollouts stays in the "
        "emptyDir or on the claim: with an emptyDir, a job whose evaluator is lost fails rather than collect twice. "
        "Unset: the bundle stays where it was written.",
    )
