"""Asks for capitals: from 1 for the right name to 0, by how near an answer comes."""

from __future__ import annotations

from near_enough import nearness
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)


class CapitalsRunRequest(BaseRunRequest):
    expected_answer: str


class CapitalsVerifyRequest(CapitalsRunRequest, BaseVerifyRequest):
    pass


class CapitalsServer(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def verify(self, body: CapitalsVerifyRequest) -> BaseVerifyResponse:
        reward = nearness(body.expected_answer, body.response.output_text)
        return BaseVerifyResponse(**body.model_dump(), reward=reward)


if __name__ == "__main__":
    CapitalsServer.run_webserver()
