"""A look into a running container, with what its image has: sh, grep, cat."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import Any

from support import cluster
from support.cluster import Object

_PLACES = "/proc/[0-9]*/environ /proc/[0-9]*/cmdline /job /tmp /run /var/run /etc /dev/shm"
_SEARCH = (
    f"exec grep --recursive --files-with-matches --no-messages --text --fixed-strings --devices=skip --file=- {_PLACES}"
)
_LISTEN = "0A"
"""TCP_LISTEN of the kernel's include/net/tcp_states.h."""
_SERVICE_ACCOUNT = "find /var/run/secrets/ -path '*kubernetes.io*'"


@dataclass(frozen=True)
class Inside:
    """A container of a pod, for commands."""

    pod: str
    container: str
    namespace: str

    @classmethod
    def of(cls, pod: Object) -> Inside:
        """The pod's main container."""
        return cls(pod["metadata"]["name"], pod["spec"]["containers"][0]["name"], pod["metadata"]["namespace"])

    def says(self, command: str) -> str:
        """Output of a shell command; what went wrong is part of it."""
        done = cluster.execute(self.pod, self.container, self.namespace, ["sh", "-c", command])
        if "completed pod" in done.stderr:
            raise AssertionError(f"{self.pod} ended before it was looked into: {done.stderr}")
        return done.stdout + done.stderr

    def places_with(self, text: str) -> list[str]:
        """Files, environments and command lines of any process that hold `text`. It travels by standard input, so that
        the search does not find itself."""
        done = cluster.execute(self.pod, self.container, self.namespace, ["sh", "-c", _SEARCH], stdin=text)
        if done.code not in (0, 1, 2):  # 1: nothing found; 2: something could not be read
            raise AssertionError(f"no search in {self.pod}: code {done.code}, {done.stderr}")
        return sorted(done.stdout.splitlines())

    def listening(self) -> Listening:
        """On which TCP ports some process of the pod does."""
        return Listening.of(self.says("cat /proc/net/tcp /proc/net/tcp6"))


@dataclass(frozen=True)
class Listening:
    """Ports by who reaches them."""

    others: set[int]
    """Whoever has a way to the pod."""
    itself: set[int]
    """The pod alone, by loopback."""

    @classmethod
    def of(cls, tables: str) -> Listening:
        """From `/proc/net/tcp` and `tcp6`."""
        found = cls(set(), set())
        for fields in map(str.split, tables.splitlines()):
            if len(fields) > 3 and fields[3] == _LISTEN:
                address, _, port = fields[1].partition(":")
                (found.itself if _of(address).is_loopback else found.others).add(int(port, 16))
        return found


def _of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel prints words of four bytes, each of them in the machine's order."""
    words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
    found = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    return getattr(found, "ipv4_mapped", None) or found


def look_into(host: Object, evaluator: Object, model_key: str) -> dict[str, Any]:
    """What a running sandbox holds. The searches that must find something show that the search works."""
    inside, beside = Inside.of(host), Inside.of(evaluator)
    token = inside.says("cat /var/run/secrets/nhx/tokens/host").strip()
    return {
        "secret files": inside.says("find /var/run/secrets/ -type f").split(),
        "service account": inside.says(_SERVICE_ACCOUNT).split(),
        "model key in host": inside.places_with(model_key),
        "token in host": inside.places_with(token),
        "model key in evaluator": beside.places_with(model_key),
        "service account of evaluator": beside.says(_SERVICE_ACCOUNT).split(),
        "listening": inside.listening(),
        "kernel": inside.says("cat /proc/version; dmesg"),
    }
