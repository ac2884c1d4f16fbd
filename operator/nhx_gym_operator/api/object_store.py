"""A bucket that is spoken to in S3's way: Amazon's own, or any other server's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from .origins import ours
from .resource import ApiModel, KeyRef, SecretValue, rule, validated
from .wire import BucketAddress

Manifest = dict[str, Any]

ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN, CERTIFICATES = (
    "access-key-id",
    "secret-access-key",
    "session-token",
    "certificates",
)
"""What a pod that speaks to a bucket is given, each as `<directory>/<name>/value`."""
_SECRET_MODE = 0o440


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


class Bucket(ApiModel):
    """A bucket and how it is reached."""

    model_config = ConfigDict(json_schema_extra=validated(*BUCKET_RULES))

    endpoint: Annotated[str | None, ours("endpoint_url of AWS's configuration file")] = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="Root of the server, e.g. `https://minio.example.org:9000`. Unset: Amazon's own of the region.",
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
        """Volume and mount of each file that a pod needs for this bucket, below `directory`. A volume each, so that the
        kubelet names the Secret whose key is missing."""
        who = self.credentials
        files = {ACCESS_KEY_ID: who.access_key_id, SECRET_ACCESS_KEY: who.secret_access_key}
        if who.session_token:
            files[SESSION_TOKEN] = who.session_token
        found = []
        for name, source in files.items():
            ref = source.secret_key_ref
            items = [{"key": ref.key, "path": "value"}]
            found.append((name, {"secret": {"secretName": ref.name, "items": items, "defaultMode": _SECRET_MODE}}))
        if self.certificates:
            ref = self.certificates.config_map_key_ref
            items = [{"key": ref.key, "path": "value"}]
            found.append((CERTIFICATES, {"configMap": {"name": ref.name, "items": items}}))
        return [
            (
                {"name": f"bucket-{name}", **source},
                {"name": f"bucket-{name}", "mountPath": f"{directory}/{name}", "readOnly": True},
            )
            for name, source in found
        ]
