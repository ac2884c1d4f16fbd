"""Addresses that nobody's files are on: a node's own services, and above all a cloud's metadata server.

Users write where a FileSet comes from, where results go and where a model is, and a pod that speaks to any of them may
stand where such a server answers with the node's own credentials. So an address is looked at where it is connected to:
after every redirect and every name lookup.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from ..api import metadata_servers

_METADATA = frozenset(map(ipaddress.ip_address, metadata_servers.OUTSIDE_LINK_LOCAL))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(Exception):
    """Names the host and its address."""


def is_refused(address: Address) -> bool:
    """Whether an address is link-local, loopback, multicast, unspecified, or a known metadata server."""
    address = plain(address)
    special = address.is_link_local or address.is_loopback or address.is_multicast or address.is_unspecified
    return special or address in _METADATA


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for; any other as it is."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def parsed(text: str) -> Address:
    """An address as `socket.getaddrinfo` writes it, its scope left out."""
    return ipaddress.ip_address(text.partition("%")[0])


def check(host: str, addresses: Iterable[str], *, loopback: bool = False) -> None:
    """Raise `AddressRefused` if one of a host's addresses is refused. With `loopback` the pod's own is not: a model may
    stand beside its caller, and the evaluator's own API opens to tokens only."""
    for text in addresses:
        address = parsed(text)
        if is_refused(address) and not (loopback and plain(address).is_loopback):
            what = "link-local" if loopback else "link-local, loopback"
            raise AddressRefused(
                f"{host} is the address {text}, which is {what} or a metadata server: "
                f"nothing is fetched from there or sent there"
            )


def check_literal(host: str) -> None:
    """Check a host that is an address; a name passes."""
    try:
        parsed(host)
    except ValueError:
        return
    check(host, [host])


def look_up(host: str, *, loopback: bool = False) -> list[str]:
    """All addresses of a host, by name or as the address that it is. Raises `AddressRefused` if one of them is refused,
    OSError if there is none."""
    found = list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))
    check(host, found, loopback=loopback)
    return found


def trouble_in_words(error: OSError) -> str:
    """Why a host could not be looked up or connected to."""
    match error:
        case socket.gaierror():
            return "no such host is known here"
        case ConnectionRefusedError():
            return "the connection was refused"
        case TimeoutError():
            return "it did not answer in time"
        case _:
            return str(error)


def check_host(host: str, *, loopback: bool = False) -> None:
    """Look a host up and check it. A name that does not resolve passes: it cannot be connected to either."""
    try:
        look_up(host, loopback=loopback)
    except OSError:
        return


class CheckedResolver(AbstractResolver):
    """aiohttp's own resolver; a name with a refused address does not resolve. What it returns is connected to, so
    that a second lookup cannot bring another answer."""

    def __init__(self, *, loopback: bool = False) -> None:
        self._resolver = ThreadedResolver()
        self._loopback = loopback

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        check(host, [entry["host"] for entry in found], loopback=self._loopback)
        return found

    async def close(self) -> None:
        await self._resolver.close()
