"""What was widened by hand is seen, and what the API server fills in is not taken for it."""

from __future__ import annotations

from typing import Any

import pytest

from nhx_gym_operator.controller.differences import contains, equals
from nhx_gym_operator.workloads import network
from support.controller_values import workload

DEFAULTED = frozenset({"protocol"})


def host_policy() -> dict[str, Any]:
    return network.network_policies(workload())[0]["spec"]


def changed(**changes: Any) -> dict[str, Any]:
    return host_policy() | changes


def way_out(**changes: Any) -> dict[str, Any]:
    (rule,) = host_policy()["egress"]
    return changed(egress=[rule | changes])


WIDENED = {
    "selects no pod": changed(podSelector={**host_policy()["podSelector"], "matchExpressions": [{"key": "a"}]}),
    "selects by one label more": changed(
        podSelector={"matchLabels": {**host_policy()["podSelector"]["matchLabels"], "somebody": "else"}}
    ),
    "the same pods of all namespaces": way_out(to=[{**host_policy()["egress"][0]["to"][0], "namespaceSelector": {}}]),
    "a range of ports": way_out(ports=[{"port": 8080, "protocol": "TCP", "endPort": 65535}]),
    "one rule more": changed(egress=[*host_policy()["egress"], {}]),
    "no judgement of what goes out": changed(policyTypes=["Ingress"]),
}


@pytest.mark.parametrize("live", WIDENED.values(), ids=WIDENED.keys())
def test_a_widened_policy_is_another_one(live: dict[str, Any]) -> None:
    assert not equals(live, host_policy(), defaulted=DEFAULTED)


def test_what_only_has_to_hold_something_would_not_have_seen_it() -> None:
    assert contains(WIDENED["a range of ports"], host_policy())


def test_what_the_api_server_makes_of_a_policy_is_the_same_one() -> None:
    assert equals(host_policy(), host_policy(), defaulted=DEFAULTED)
    assert equals({"ports": [{"port": 1, "protocol": "TCP"}]}, {"ports": [{"port": 1}]}, defaulted=DEFAULTED)
    assert equals({}, {"ingress": []}, defaulted=DEFAULTED)
    assert equals({"ingress": []}, {}, defaulted=DEFAULTED)
    assert not equals({"podSelector": {}}, {}, defaulted=DEFAULTED)
