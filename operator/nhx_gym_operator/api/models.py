"""The model endpoints of a job."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from .object_store import CertificateSource
from .origins import CUSTOM_ENVIRONMENT_PAGE, ours, page
from .resource import WEEK_SECONDS, ApiModel, SecretValue, rule, validated

MODEL_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
BASE_URL = r"^https?://[^/@?#]+(/[^?#]*)?$"


def model_field(name: str) -> str:
    """How messages name one of a job's models; its own fields follow behind a dot."""
    return f"spec.models[name={name}]"


class ModelSpec(ApiModel):
    """One model endpoint. Gym reaches it through the evaluator, which alone holds its key."""

    # The rule stands here and not at `baseUrl` because a refusal there would repeat the address,
    # and with it the password that made it invalid.
    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                f"self.baseUrl.matches('{BASE_URL}')",
                "baseUrl must be http(s)://HOST[:PORT]/PATH without user, query or fragment; a key belongs in apiKey",
                field=".baseUrl",
            )
        )
    )

    name: Annotated[str, ours("models by name")] = Field(
        min_length=1,
        max_length=32,
        pattern=MODEL_NAME,
        description="`policy` for the model under evaluation. Any other model NAME, a judge for "
        "instance, is offered to Gym's configuration as `NAME_base_url`, `NAME_api_key` and "
        "`NAME_model_name`, with `-` as `_`.",
    )
    base_url: Annotated[str, page(CUSTOM_ENVIRONMENT_PAGE, "policy_base_url")] = Field(
        min_length=1,
        max_length=2048,
        description="Root of an OpenAI-compatible API, usually ending in `/v1`. Link-local and metadata addresses are "
        "refused.",
    )
    model: Annotated[str, page(CUSTOM_ENVIRONMENT_PAGE, "policy_model_name")] = Field(
        min_length=1,
        max_length=256,
        description="The model's name at that endpoint, e.g. `org/Name-3.2`.",
    )
    api_key: Annotated[SecretValue | None, page(CUSTOM_ENVIRONMENT_PAGE, "policy_api_key")] = Field(
        default=None,
        description="The endpoint's key. Unset: calls carry none.",
    )
    certificates: Annotated[CertificateSource | None, ours("private certificate authority")] = Field(
        default=None,
        description="Certificate authorities that are trusted besides the image's own, for an endpoint with a private "
        "one. Every certificate is verified. Unset: the image's own only.",
    )
    timeout_seconds: Annotated[float, ours("deadline of one call", default="openai.DEFAULT_TIMEOUT.read")] = Field(
        default=600.0,
        gt=0,
        le=WEEK_SECONDS,
        description="Longest time for one call, its retries included.",
    )
    max_retries: Annotated[int, ours("as the OpenAI client's", default="openai.DEFAULT_MAX_RETRIES")] = Field(
        default=2,
        ge=0,
        le=100,
        description="Further attempts after a call that failed for a passing reason.",
    )
    max_concurrent_calls: Annotated[int, ours("limit of the gateway", default="ours")] = Field(
        default=64,
        ge=1,
        le=4096,
        description="Calls to the endpoint at once; further ones wait.",
    )
