"""Addresses that nobody's files come from: a node's own services, and above all a cloud's metadata server.

A FileSet is written by users, and read from a pod that may stand where such a server answers with the node's own
credentials. So an address is looked at where it is connected to: after every redirect and every name lookup.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from .errors import StagingError

# Metadata servers outside the link-local range: AWS by IPv6, Alibaba Cloud, Oracle Cloud, Azure's wire server.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_refused(address: Address) -> bool:
    """Whether an address is link-local, loopback, multicast, unspecified, or a known metadata server."""
    inner = _embedded(address)
    if inner is not None:
        return is_refused(inner)
    special = address.is_link_local or address.is_loopback or address.is_multicast or address.is_unspecified
    return special or address in _METADATA


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour


def check(host: str, addresses: Iterable[str]) -> None:
    """Raise `StagingError` if one of a host's addresses is refused."""
    for text in addresses:
        if is_refused(ipaddress.ip_address(text.partition("%")[0])):
            raise StagingError(
                f"{host} is the address {text}, which is link-local, loopback or a metadata server: "
                f"files are not fetched from there"
            )


def check_literal(host: str) -> None:
    """Check a host that is an address; a name passes."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return
    check(host, [host])


def check_host(host: str) -> None:
    """Look a host up, by name or as the address that it is, and check it. A name that does not resolve passes: it
    cannot be connected to either."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return
    check(host, {str(entry[4][0]) for entry in found})


class CheckedResolver(AbstractResolver):
    """aiohttp's own resolver; a name with a refused address does not resolve. What it returns is connected to, so
    that a second lookup cannot bring another answer."""

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        check(host, [entry["host"] for entry in found])
        return found

    async def close(self) -> None:
        await self._resolver.close()
