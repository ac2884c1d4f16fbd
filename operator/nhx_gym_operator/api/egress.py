"""Hosts of the network that a sandboxed Gym may reach: how a list of them is written, and what it allows.

Two lists are written so, the administrator's (the chart's `sandbox.egress.allow`) and a job's. Both are judged here:
once when the job is accepted, which gets nothing beyond the administrator's list, and then at every request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from .origins import ours
from .resource import ApiModel

SETTING = "sandbox.egress.allow"
FIELD = "spec.egress.allow"
PORTS = (443, 80)
"""Of an entry without a port: those of https and http."""

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = rf"(\*\.)?{_LABEL}(\.{_LABEL})*"
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ENTRY = rf"^{_NAME}(:{_PORT})?$"
"""`host` or `host:port` (as `sandbox_egress_allow` of evals/agent-eval/gym-sandbox-configuration.mdx has it), in small
letters; `*.host` for every name below it."""
MAX_NAMED = 8
"""Entries of a job's list that its status counts requests of."""
HostEntry = Annotated[str, Field(max_length=260, pattern=ENTRY)]

_HOST = re.compile(_NAME)


class Egress(ApiModel):
    """What a sandboxed Gym may reach besides its evaluator."""

    allow: Annotated[list[HostEntry], ours("hosts that a sandboxed Gym may reach")] = Field(
        default=[],
        max_length=64,
        description="Hosts that Gym may reach through its evaluator, a forward proxy that logs every request: "
        "`host` (ports 443 and 80) or `host:port`, `*.host` for all names below it. Each must be within the "
        "operator's `sandbox.egress.allow`. Empty: none. Without effect in a colocated job, whose Gym has its "
        "evaluator's network.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


def allows(entries: Iterable[str], host: str, port: int) -> bool:
    """Whether one of `entries` covers this port of a host, which is a name or an IPv4 address in small letters."""
    return allowed_by(entries, host, port) is not None


def allowed_by(entries: Iterable[str], host: str, port: int) -> str | None:
    """The first of `entries` that covers it."""
    for entry in entries:
        name, ports = _parts(entry)
        if port in ports and _covers(name, host):
            return entry
    return None


def spells_out(entries: Iterable[str], host: str, port: int) -> bool:
    """Whether an entry that is no `*.` covers it: then whoever wrote the list knew the host."""
    return allows((entry for entry in entries if not entry.startswith("*")), host, port)


def beyond(asked: Iterable[str], ceiling: Sequence[str]) -> list[str]:
    """The entries of `asked` of which `ceiling` does not allow all."""
    return [entry for entry in asked if not _within(entry, ceiling)]


def _within(entry: str, ceiling: Sequence[str]) -> bool:
    name, ports = _parts(entry)
    return all(allows(ceiling, name, port) for port in ports)


def _parts(entry: str) -> tuple[str, tuple[int, ...]]:
    name, _, port = entry.partition(":")
    return name, (int(port),) if port else PORTS


def _covers(name: str, host: str) -> bool:
    below = name.startswith("*.") and host.endswith(name[1:]) and _HOST.fullmatch(host)
    return host == name or bool(below)
