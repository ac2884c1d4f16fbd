"""What a job may cost at most."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.alias_generators import to_camel

from .origins import ours
from .resource import ApiModel

MOST = 10**15
"""Far beyond any run, and a number that every JSON reader takes."""


class Limits(ApiModel):
    """Bounds of one job. Each may be lower than the operator's own (`limits.maxRollouts` and so on), never higher."""

    rollouts: Annotated[int | None, ours("bound on tasks x numRepeats")] = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Refuse the job before any model call if tasks x numRepeats are more. Unset: the operator's bound.",
    )
    tokens: Annotated[int | None, ours("bound on the tokens of all model calls")] = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Make no further model call once the job's models have counted so many tokens, sent and received, "
        "over all attempts. Calls that are under way end normally, and calls whose answer states no tokens cannot be "
        "counted. Unset: the operator's bound.",
    )
    calls: Annotated[int | None, ours("bound on the number of all model calls")] = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Make no further model call after so many, over all attempts. A call counts once, however often it "
        "was repeated. Unset: the operator's bound.",
    )
    model_seconds: Annotated[int | None, ours("bound on the time of all model calls")] = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Make no further model call once calls have taken so many seconds, each by itself, over all "
        "attempts. Calls that are under way end normally. Unset: the operator's bound.",
    )
    concurrent_calls: Annotated[int | None, ours("bound on model calls at once")] = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Model calls at once, all models together; further ones wait. Each model's own "
        "`maxConcurrentCalls` holds beside it. Unset: the operator's bound.",
    )


def operators_setting(limit: str) -> str:
    """The operator's setting that bounds a field of `Limits`: `limits.maxModelSeconds` for `model_seconds`."""
    return f"limits.{to_camel(f'max_{limit}')}"


def users_field(limit: str) -> str:
    """The field as a user writes it: `spec.limits.modelSeconds`."""
    return f"spec.limits.{to_camel(limit)}"
