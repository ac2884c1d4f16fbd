"""A resources server that counts words.

Each row names the words that a right answer holds; its reward is the share of them that the answer
has, from 0 to 1. An entry may offer alternatives: `7|seven` is there if either word is.
"""

from __future__ import annotations

import re

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from pydantic import Field


class WordCheckRunRequest(BaseRunRequest):
    """The row's own fields, beside the request to the model."""

    task: str = ""
    expected_words: list[str] = Field(min_length=1)


class WordCheckVerifyRequest(WordCheckRunRequest, BaseVerifyRequest):
    """The same, with the model's response."""


class WordCheckVerifyResponse(BaseVerifyResponse):
    """What is recorded of a rollout. `full_match` is 1 if no expected word is missing."""

    task: str
    expected_words: list[str]
    found_words: list[str]
    full_match: float


def found_words(answer: str, expected: list[str]) -> list[str]:
    """The entries of `expected` of which an alternative is a whole word of `answer`."""
    spoken = set(re.findall(r"[a-z0-9]+", answer.lower()))
    return [entry for entry in expected if not spoken.isdisjoint(entry.lower().split("|"))]


class WordCheckServer(SimpleResourcesServer):
    """Scores one answer at a time and keeps nothing between them."""

    config: BaseResourcesServerConfig

    async def verify(self, body: WordCheckVerifyRequest) -> WordCheckVerifyResponse:
        found = found_words(body.response.output_text, body.expected_words)
        missing = len(body.expected_words) - len(found)
        return WordCheckVerifyResponse(
            **body.model_dump(),
            found_words=found,
            full_match=float(missing == 0),
            reward=len(found) / len(body.expected_words),
        )


if __name__ == "__main__":
    WordCheckServer.run_webserver()
