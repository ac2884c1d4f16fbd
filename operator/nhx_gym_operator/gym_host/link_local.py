"""Neighbours on a pod's links over IPv6. Every interface makes itself a link-local address, in a cluster of IPv4 too,
and a policy that knows pods by the addresses that Kubernetes gave them does not see what is sent from it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

MOST = 8
"""Neighbours that are tried: the node is one of the first to answer, and a gate's round takes its targets together."""
ECHO_WAIT_S = 1.0

_ADDRESSES = Path("/proc/net/if_inet6")
_ROUTES = Path("/proc/net/ipv6_route")
_ALL_NODES = "ff02::1"
_ECHO_REQUEST = bytes([128, 0, 0, 0, 0, 0, 0, 0])
"""ICMPv6, RFC 4443 section 4.1; the kernel fills in checksum and identifier."""


@dataclass(frozen=True)
class Neighbours:
    addresses: tuple[str, ...] = ()
    """As `fe80::1%eth0`."""
    note: str = ""
    """Why there are none."""


def _answering(link: str) -> list[str]:
    """Who answers an echo to all nodes of the link; nobody where a pod may send none (`net.ipv4.ping_group_range`)."""
    found: list[str] = []
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6) as echo:
            echo.settimeout(ECHO_WAIT_S)
            echo.sendto(_ECHO_REQUEST, (_ALL_NODES, 0, 0, socket.if_nametoindex(link)))
            # One more, since one's own answer comes too.
            while len(found) <= MOST:
                found.append(echo.recvfrom(256)[1][0].partition("%")[0])
    except OSError:
        pass
    return found


def look(
    addresses: Path = _ADDRESSES, routes: Path = _ROUTES, answering: Callable[[str], list[str]] = _answering
) -> Neighbours:
    """The next hops of the pod's routes, and who answers an echo."""
    try:
        lines = addresses.read_text().splitlines()
    except OSError:
        return Neighbours(note="this kernel has no IPv6")
    own = [(_address(fields[0]), fields[5]) for fields in map(str.split, lines) if len(fields) == 6]
    links = sorted({link for address, link in own if address.is_link_local})
    if not links:
        return Neighbours(note="no interface has an IPv6 link-local address")
    found = dict.fromkeys(hop for hop in _next_hops(routes) if hop[1] in links)
    for link in links:
        found |= dict.fromkeys((IPv6Address(host), link) for host in answering(link))
    others = [f"{address}%{link}" for address, link in found if address.is_link_local and (address, link) not in own]
    return Neighbours(tuple(others[:MOST]), "" if others else "no IPv6 link-local neighbour was found")


def _next_hops(routes: Path) -> list[tuple[IPv6Address, str]]:
    try:
        lines = routes.read_text().splitlines()
    except OSError:
        return []
    return [(_address(fields[4]), fields[9]) for fields in map(str.split, lines) if len(fields) == 10]


def _address(digits: str) -> IPv6Address:
    return IPv6Address(int(digits, 16))
