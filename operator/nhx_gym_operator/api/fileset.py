"""FileSet: a named set of files, taken from somewhere, for jobs to use."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .constants import API_VERSION, FILESET_KIND
from .object_store import BUCKET_RULES, BucketCredentials, BucketSpec, CertificateSource
from .origins import CUSTOM_ENVIRONMENT_PAGE, kubernetes, ours, page
from .resource import (
    CONDITION_LIST,
    ApiModel,
    Condition,
    ConfigKey,
    ObjectMeta,
    ObjectName,
    SecretValue,
    Timestamp,
    exactly_one_of,
    relative_path,
    rule,
    validated,
)

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"


class Purpose(StrEnum):
    """What a FileSet is good for."""

    ENVIRONMENT = "environment"
    DATASET = "dataset"


class KeyToPath(ApiModel):
    """One file: a key of the ConfigMap and the path it gets."""

    key: Annotated[ConfigKey, kubernetes("KeyToPath.key")] = Field(description="A key of the ConfigMap.")
    path: Annotated[str, kubernetes("KeyToPath.path")] = Field(
        min_length=1,
        max_length=512,
        description="Path of the file in the set, e.g. `resources_servers/mine/app.py`.",
        json_schema_extra=validated(
            *relative_path("path")["x-kubernetes-validations"],
            # Pods are refused otherwise: the kubelet keeps such names for itself.
            rule("!self.startsWith('..')", "path must not begin with '..'"),
        ),
    )


class ConfigMapSource(ApiModel):
    """Files that stand in one ConfigMap of the same namespace."""

    name: Annotated[ObjectName, kubernetes("ConfigMapVolumeSource.name")] = Field(
        description="Name of the ConfigMap, in the FileSet's namespace."
    )
    items: Annotated[list[KeyToPath], kubernetes("ConfigMapVolumeSource.items")] = Field(
        default=[],
        max_length=256,
        description="Which keys become which files. Empty: every key, under its own name.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["path"],
        },
    )


_ROOT = Field(
    default=None,
    min_length=1,
    max_length=512,
    description="Folder of the source that is the set's root, e.g. `my-environment`. Unset: the source's own root.",
    json_schema_extra=relative_path("path"),
)
_SHA256 = Field(
    default=None,
    max_length=64,
    pattern=r"^[0-9a-f]{64}$",
    description="SHA-256 of the archive, as `sha256sum` prints it: another is refused. Unset: not checked.",
)


class ClaimSource(ApiModel):
    """Files on a PersistentVolumeClaim of the same namespace."""

    claim_name: Annotated[ObjectName, kubernetes("PersistentVolumeClaimVolumeSource.claimName")] = Field(
        description="Name of the claim, in the FileSet's namespace. It is mounted read-only."
    )
    path: Annotated[str | None, kubernetes("VolumeMount.subPath")] = _ROOT


_CERTIFICATES = Field(
    default=None,
    description="Certificate authorities that are trusted besides the image's own, for a server with a private one. "
    "Unset: the image's own only. Servers are always verified.",
)


class HttpSource(ApiModel):
    """An archive (.tar, .tar.gz, .tar.bz2, .tar.xz or .zip) on a web server."""

    # The rule stands here and not at `url` because a refusal there would repeat the address, and with it a password
    # that may stand in it.
    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "self.url.matches('^https?://[^/@?#[:space:]]+(/[^#[:space:]]*)?$')",
                "url must be http(s)://HOST[:PORT]/PATH without user and password; those belong in authorization",
                field=".url",
            )
        )
    )

    url: Annotated[str, ours("where the archive is")] = Field(
        min_length=1,
        max_length=2048,
        description="`http://` or `https://` address of the archive, as the job's evaluator pod reaches it. "
        "Link-local and metadata addresses are refused, also as the target of a redirect.",
    )
    sha256: Annotated[str | None, ours("hex SHA-256 of the archive's bytes, as `sha256sum` prints it")] = _SHA256
    path: Annotated[str | None, kubernetes("VolumeMount.subPath")] = _ROOT
    authorization: Annotated[SecretValue | None, ours("value of the Authorization header")] = Field(
        default=None,
        description="The `Authorization` header's whole value, e.g. `Bearer …`. It is sent to the url's own "
        "scheme, host and port only, not where that redirects to. Unset: none is sent.",
    )
    certificates: Annotated[CertificateSource | None, ours("private certificate authority")] = _CERTIFICATES


class S3Source(BucketSpec):
    """Objects of a bucket: all below a prefix, or one archive."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            *BUCKET_RULES,
            rule("has(self.prefix) != has(self.key)", "set prefix for a folder of files or key for one archive"),
            rule("!has(self.sha256) || has(self.key)", "sha256 is of the archive that key names", field=".sha256"),
            rule("!has(self.path) || has(self.key)", "path is inside the archive that key names", field=".path"),
        )
    )

    prefix: Annotated[str | None, ours("folder of the bucket")] = Field(
        default=None,
        max_length=1024,
        description="Every object below this folder is a file of the set, e.g. `my envs/tiny/`. Empty: the whole "
        "bucket.",
    )
    key: Annotated[str | None, ours("an archive in the bucket")] = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Key of an archive (.tar, .tar.gz, .tar.bz2, .tar.xz or .zip), instead of prefix.",
    )
    sha256: Annotated[str | None, ours("hex SHA-256 of the archive's bytes, as `sha256sum` prints it")] = _SHA256
    path: Annotated[str | None, kubernetes("VolumeMount.subPath")] = _ROOT
    credentials: Annotated[BucketCredentials | None, ours("credentials by the keys of Secrets")] = Field(  # type: ignore[assignment]
        default=None, description="Who asks. Unset: requests are anonymous."
    )


class PullPolicy(StrEnum):
    """When the node fetches an image: Kubernetes' own words."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ImageSource(ApiModel):
    """Files in an OCI image, mounted as an image volume where the cluster has them."""

    reference: Annotated[str, kubernetes("ImageVolumeSource.reference")] = Field(
        min_length=1,
        max_length=1024,
        description="The image, e.g. `registry.example.org/envs/tiny:1`. Needs image volumes: Kubernetes 1.33 or "
        "newer with a container runtime that mounts them (containerd 2.1, CRI-O 1.31).",
    )
    pull_policy: Annotated[PullPolicy | None, kubernetes("ImageVolumeSource.pullPolicy")] = Field(
        default=None, description="When to pull it. Unset: Kubernetes' own default for the reference."
    )
    path: Annotated[str | None, kubernetes("VolumeMount.subPath")] = _ROOT


class Source(ApiModel):
    """Where the files come from: exactly one of these."""

    model_config = ConfigDict(
        json_schema_extra=validated(exactly_one_of("configMap", "persistentVolumeClaim", "http", "s3", "image"))
    )

    config_map: Annotated[ConfigMapSource | None, kubernetes("Volume.configMap")] = Field(
        default=None, description="Files from a ConfigMap (at most 1 MiB together)."
    )
    persistent_volume_claim: Annotated[ClaimSource | None, kubernetes("Volume.persistentVolumeClaim")] = Field(
        default=None, description="Files on a claim."
    )
    http: Annotated[HttpSource | None, ours("an archive on a web server")] = Field(
        default=None, description="An archive on a web server."
    )
    s3: Annotated[S3Source | None, ours("objects of an S3 server")] = Field(
        default=None, description="Objects of AWS S3 or any server that speaks its API."
    )
    image: Annotated[ImageSource | None, kubernetes("Volume.image")] = Field(
        default=None, description="Files in an OCI image."
    )


class FileSetSpec(ApiModel):
    """Which files, and what for."""

    purpose: Annotated[Purpose, page(CUSTOM_ENVIRONMENT_PAGE, "--purpose environment")] = Field(
        default=Purpose.ENVIRONMENT,
        description="`environment`: a Gym environment package, with `nemo-environment.yaml` at its "
        "root. `dataset`: row files.",
    )
    source: Annotated[Source, ours("where the files come from")] = Field(description="Where the files come from.")
    digest: Annotated[str | None, ours("pins the content")] = Field(
        default=None,
        max_length=71,
        pattern=DIGEST_PATTERN,
        description="What `status.digest` must be: jobs refuse other content. It is over the files' paths and "
        "bytes, so it is the same for every source and however an archive is packed. Unset: not checked.",
    )


class SeenBy(ApiModel):
    """The job whose pod read the source."""

    job: str = Field(max_length=253, description="Name of the job.")
    attempt: int = Field(ge=1, description="Which of its attempts.")
    time: Timestamp = Field(description="When its pod had read everything, or had failed to.")


class FileSetStatus(ApiModel):
    """What is known about the set. Written by the operator alone."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="`metadata.generation` that this status speaks of."
    )
    files: int | None = Field(default=None, ge=0, description="Files found at the source.")
    bytes: int | None = Field(default=None, ge=0, description="Their size together.")
    digest: str | None = Field(
        default=None,
        max_length=128,
        description="`sha256:…` over paths and bytes of all files, as a job's `status.ran.environmentDigest`.",
    )
    seen_by: SeenBy | None = Field(
        default=None,
        description="Who read the source last. Set for sources that only pods can read: all but configMap.",
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=8,
        description="Resolved: every file can be read from its source.",
        json_schema_extra=CONDITION_LIST,
    )


class FileSet(ApiModel):
    """A named set of files: a Gym environment package or a dataset."""

    api_version: str = API_VERSION
    kind: str = FILESET_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: FileSetSpec = Field(description="Which files, and what for.")
    status: FileSetStatus = Field(default_factory=FileSetStatus, description="What is known about the set.")
