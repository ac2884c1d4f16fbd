"""Asks for capitals: 1 for an answer that holds the right name, 0 for any other."""

from __future__ import annotations

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
        is_right = body.expected_answer.lower() in body.response.output_text.lower()
        return BaseVerifyResponse(**body.model_dump(), reward=float(is_right))


if __name__ == "__main__":
    CapitalsServer.run_webserver()
