"""What the kubelet's probes are told."""

import socket

import aiohttp
import pytest

from nhx_gym_operator.controller import health


@pytest.fixture
async def probed():
    """Asks for a path; `trouble` is changed by the test."""

    class Probed:
        trouble = ""

        async def get(self, path):
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    probed = Probed()
    runner = await health.serve(port, lambda: probed.trouble)
    yield probed
    await runner.cleanup()


async def test_an_operator_that_sees_is_well(probed):
    assert await probed.get("/healthz") == (200, "ok")


async def test_a_blind_one_says_why_and_is_not_restarted_for_it(probed):
    probed.trouble = "pods were last listed 91 s ago: 500"
    assert await probed.get("/healthz") == (503, probed.trouble)
    assert await probed.get("/livez") == (200, "ok")
