"""What kopf reads, and what the operator is told of it."""

import asyncio
import contextvars
import json
from typing import ClassVar

import pytest
from kopf._cogs.clients import api as kopf_api

from nhx_gym_operator.controller import kopf_reader


@pytest.fixture
def answer(monkeypatch):
    """Sets what the API server answers to kopf."""
    monkeypatch.setattr(kopf_api, "json", kopf_api.json)
    monkeypatch.setattr(kopf_api, "get", kopf_api.get)

    class Response:
        body: ClassVar[dict] = {}

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def read(self):
            return json.dumps(self.body).encode()

    async def request(**_):
        return Response()

    monkeypatch.setattr(kopf_api, "request", request)
    return lambda body: setattr(Response, "body", body)


async def heard(kinds):
    """What an operator is told, started in a context of its own."""
    kopf_reader.install(kinds.append)
    await asyncio.create_task(kopf_api.get(url="/api/v1/pods"))


@pytest.mark.parametrize("items", [[], [{"metadata": {"uid": "a", "name": "a"}}]])
async def test_of_every_list_that_kopf_reads_the_operator_is_told_even_of_one_of_nothing(answer, items):
    answer({"kind": "PodList", "items": items})
    kinds: list[str] = []
    await asyncio.create_task(heard(kinds), context=contextvars.copy_context())
    assert kinds == ["Pod"]


async def test_of_two_operators_in_one_process_each_is_told_of_its_own(answer):
    answer({"kind": "PodList", "items": []})
    first: list[str] = []
    second: list[str] = []
    await asyncio.gather(*(asyncio.create_task(heard(kinds)) for kinds in (first, second)))
    assert (first, second) == (["Pod"], ["Pod"])


async def test_what_is_no_list_is_none(answer):
    answer({"kind": "APIVersions", "versions": ["v1"]})
    kinds: list[str] = []
    await asyncio.create_task(heard(kinds))
    assert kinds == []


def test_another_kopf_is_an_error_at_once(monkeypatch):
    monkeypatch.delattr(kopf_api, "request")
    with pytest.raises(RuntimeError, match="has no request"):
        contextvars.copy_context().run(kopf_reader.install, lambda _: None)
