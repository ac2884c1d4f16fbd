"""Requests to the API server: whatever a user writes, a name is one object's."""

from __future__ import annotations

import pytest

from nhx_gym_operator.controller.app import Operator
from nhx_gym_operator.controller.kube import CONFIG_MAPS, ApiError, KubeClient
from support.controller_values import installation


def path_of(namespace: str, name: str) -> str:
    client = KubeClient.__new__(KubeClient)
    return client._path(CONFIG_MAPS, namespace, name)


@pytest.mark.parametrize("name", ["../../other/configmaps/rows", "..", ".", "a/b", "..%2f..%2fother", "rows/status"])
def test_what_would_lead_into_another_namespace_is_the_name_of_nothing(name: str) -> None:
    for namespace, of in (("team", name), (name, "rows")):
        with pytest.raises(ApiError, match="is no object's name") as refused:
            path_of(namespace, of)
        assert refused.value.not_found


def test_a_name_cannot_bring_a_query_with_it() -> None:
    assert path_of("team", "rows?watch=1#x") == "/api/v1/namespaces/team/configmaps/rows%3Fwatch%3D1%23x"


@pytest.mark.parametrize(
    ("version", "able"),
    [
        ({"major": "1", "minor": "33"}, False),
        ({"major": "1", "minor": "34"}, True),
        ({"major": "1", "minor": "35+"}, True),
        ({"major": "2", "minor": "0"}, True),
        ({}, False),
        (ApiError(500, "InternalError", "no"), False),
    ],
    ids=["refuses the fields", "leaves them out", "a provider's", "to come", "none", "trouble"],
)
async def test_only_an_api_server_that_bears_it_is_asked_to_have_a_container_started_again(version, able) -> None:
    class Answers(KubeClient):
        async def _request(self, method: str, path: str, **_: object) -> dict[str, str]:
            assert (method, path) == ("GET", "/version")
            if isinstance(version, ApiError):
                raise version
            return version

    client, operator = Answers.__new__(Answers), Operator.__new__(Operator)
    assert (await operator._with_restarts(installation(), client)).restarts is able
