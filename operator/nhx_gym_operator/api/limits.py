"""What a job may cost at most."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .origins import ours
from .resource import ApiModel

MOST = 10**15
"""Far beyond any run, and a number that every JSON reader takes."""


class Limits(ApiModel):
    """Bounds of one job. They may be lower than the operator's own (`limits.maxRollouts`, `limits.maxTokens`), never
    higher."""

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
