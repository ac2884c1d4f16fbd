"""Requests to the API server: whatever a user writes, a name is one object's."""

from __future__ import annotations

import pytest

from nhx_gym_operator.controller.kube import CONFIG_MAPS, ApiError, KubeClient


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
