"""A bucket that is spoken to in S3's way: Amazon's own, or any other server's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from .origins import ours
from .resource import ApiModel, KeyRef, SecretValue, rule, validated
from .wire.mounts import SECRET_FILE
from .wire.plans import BucketAddress

Manifest = dict[str, Any]

ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN, CERTIFICATES = (
    "access-key-id",
    "secret-access-key",
    "session-token",
    "certificates",
)
"""What a pod that speaks to a bucket is given, each as `<directory>/<name>/<SECRET_FILE>`."""
SECRET_MODE = 0o440
"""Readable for the pod's fsGroup, whatever user id the image runs as."""


class BucketCredentials(ApiModel):
    """Who asks, each part by the key of a Secret that holds it."""

    access_key_id: Annotated[SecretValue, ours("aws_access_key_id of AWS's configuration file")] = Field(
        description="The access key's id."
    )
    secret_access_key: Annotated[SecretValue, ours("aws_secret_access_key of AWS's configuration file")] = Field(
        description="The access key itself."
    )
    session_token: Annotated[SecretValue | None, ours("aws_session_token of AWS's configuration file")] = Field(
        default=None, description="The session's token, for keys that expire. Unset: the key is a lasting one."
    )

    @property
    def by_name(self) -> dict[str, SecretValue]:
        """By the names that their files have in a pod."""
        values = {
            ACCESS_KEY_ID: self.access_key_id,
            SECRET_ACCESS_KEY: self.secret_access_key,
            SESSION_TOKEN: self.session_token,
        }
        return {name: value for name, value in values.items() if value}


class CertificateSource(ApiModel):
    """Certificates of authorities that a server's own may be signed by."""

    config_map_key_ref: Annotated[KeyRef, ours("certificates in a ConfigMap")] = Field(
        description="The ConfigMap and the key whose value is one or more certificates as PEM."
    )


# Of the bucket and not of `endpoint`, because a refusal there would repeat the address, and with it a password that may
# stand in it.
BUCKET_RULES = (
    rule(
        "!has(self.endpoint) || self.endpoint.matches('^https?://[^/@?#]+/?$')",
        "endpoint must be http(s)://HOST[:PORT] without user, path or query; keys belong in credentials",
        field=".endpoint",
    ),
)


class BucketSpec(ApiModel):
    """A bucket and how it is reached."""

    model_config = ConfigDict(json_schema_extra=validated(*BUCKET_RULES))

    endpoint: Annotated[str | None, ours("endpoint_url of AWS's configuration file")] = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="Root of the server, e.g. `https://minio.example.org:9000`. Link-local, loopback and metadata "
        "addresses are refused, also as the target of a redirect. Unset: Amazon's own of the region.",
    )
    region: Annotated[str, ours("region of AWS's configuration file", default="obstore.store.S3Config.region")] = Field(
        default="us-east-1", min_length=1, max_length=64, description="Region that requests are signed for."
    )
    bucket: Annotated[str, ours("name of a bucket")] = Field(
        min_length=3,
        max_length=63,
        pattern=r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$",
        description="Name of the bucket, which must exist.",
    )
    credentials: Annotated[BucketCredentials, ours("credentials by the keys of Secrets")] = Field(
        description="Who asks. The Secrets are in the namespace of what names them."
    )
    certificates: Annotated[CertificateSource | None, ours("private certificate authority")] = Field(
        default=None,
        description="Certificate authorities that are trusted besides the image's own. Unset: the image's own only.",
    )

    def address(self, prefix: str = "") -> BucketAddress:
        """What a pod is told; the credentials come as files."""
        return BucketAddress(
            endpoint=self.endpoint,
            region=self.region,
            bucket=self.bucket,
            prefix=prefix,
            has_session_token=self.credentials.session_token is not None,
            has_certificates=self.certificates is not None,
        )

    def volumes(self, directory: str) -> list[tuple[Manifest, Manifest]]:
        """Volume and mount of each file that a pod needs for this bucket, below `directory`."""
        return [
            (
                {"name": f"bucket-{name}", **source},
                {"name": f"bucket-{name}", "mountPath": f"{directory}/{name}", "readOnly": True},
            )
            for name, source in key_volumes(self.credentials.by_name, self.certificates)
        ]


def key_volumes(
    secrets: Mapping[str, SecretValue], certificates: CertificateSource | None
) -> Iterator[tuple[str, Manifest]]:
    """Name and body of a volume for each secret and for the certificates, with the one file `SECRET_FILE` in it. A
    volume each, so that the kubelet names what is missing."""
    for name, value in secrets.items():
        key = value.secret_key_ref
        items = [{"key": key.key, "path": SECRET_FILE}]
        yield name, {"secret": {"secretName": key.name, "items": items, "defaultMode": SECRET_MODE}}
    if certificates:
        key = certificates.config_map_key_ref
        yield CERTIFICATES, {"configMap": {"name": key.name, "items": [{"key": key.key, "path": SECRET_FILE}]}}
