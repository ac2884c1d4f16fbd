"""The local cluster's addresses: what is sent to any of them stays on this machine, whoever has it or has it not."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from typing import Any

import pytest

from devcluster.settings import (
    API_PORT,
    NODE_BRIDGE,
    NODE_IP,
    POD_BRIDGE,
    POD_CIDR,
    POD_GATEWAY,
    SERVICE_CIDR,
    WHOLE_RANGE,
)
from support import cluster

UNREACHABLE = "No route to host"
OUTSIDE = "1.1.1.1"
OF_A_POD = ["from", f"{ipaddress.ip_network(POD_CIDR)[-2]}", "iif", POD_BRIDGE]
"""As the kernel judges a packet that comes in from the pods' bridge."""
BLOCKS = [*ipaddress.ip_network(WHOLE_RANGE).subnets(new_prefix=20)]


@pytest.mark.parametrize("sender", [[], OF_A_POD], ids=["the node", "a pod"])
def test_an_address_of_the_range_that_nobody_can_have_is_refused_at_once(sender: list[str]) -> None:
    served = [ipaddress.ip_network(network) for network in (POD_CIDR, SERVICE_CIDR)]
    nobodys = [block for block in BLOCKS if not any(block.subnet_of(network) for network in served)]
    ways = {_way(str(block[77]), *sender) for block in nobodys}
    assert len(nobodys) > 20 and ways == {UNREACHABLE}


@pytest.mark.parametrize("sender", [[], OF_A_POD], ids=["the node", "a pod"])
def test_no_address_of_the_range_has_a_way_out_of_the_machine(sender: list[str]) -> None:
    ways = {_way(str(block[number]), *sender) for block in BLOCKS for number in (1, 254)}
    assert ways == {UNREACHABLE, NODE_BRIDGE, POD_BRIDGE, "lo"}
    assert _ports(NODE_BRIDGE) == []
    assert {port["linkinfo"]["info_kind"] for port in _ports(POD_BRIDGE)} <= {"veth"}


def test_a_pod_has_no_way_to_an_address_outside_the_range() -> None:
    assert _way(OUTSIDE, *OF_A_POD) == UNREACHABLE


def test_the_addresses_that_are_taken_are_this_machines_own() -> None:
    assert (_way(NODE_IP), _way(POD_GATEWAY)) == ("lo", "lo")
    assert cluster.kubectl("config", "view", "--output=jsonpath={.clusters[*].cluster.server}") == (
        f"https://{NODE_IP}:{API_PORT}"
    )


def _way(address: str, *sender: str) -> str:
    """The device by which the kernel would send there, `UNREACHABLE` where it would refuse to."""
    done = subprocess.run(["ip", "-json", "route", "get", address, *sender], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().rpartition(": ")[2]
    (route,) = json.loads(done.stdout)
    return route["dev"]


def _ports(bridge: str) -> list[dict[str, Any]]:
    show = ["ip", "-json", "-details", "link", "show", "master", bridge]
    return json.loads(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
