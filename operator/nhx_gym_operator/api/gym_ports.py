"""Ports that a configuration gives to Gym's servers, and what stands in their way.

Without one, Gym chooses a free port for each server (`validate_and_populate_defaults` of nemo_gym.global_config). Two
that want the same are not seen before they start: Gym takes whatever answers there for its server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .constants import Placement
from .wire.endpoints import CANARY_PORT, EVALUATOR_PORT, HOST_PORT

COMPONENT_TYPES = ("resources_servers", "responses_api_agents", "responses_api_models")
"""The kinds of Gym's servers: in its configuration a server is INSTANCE.KIND.NAME."""
TAKEN = {
    Placement.SANDBOXED: {HOST_PORT: "the gym host"},
    Placement.COLOCATED: {EVALUATOR_PORT: "the evaluator", CANARY_PORT: "the evaluator"},
}
"""By whom a port is taken in the pod that Gym runs in."""


def clash(config: Mapping[str, Any], placement: Placement) -> str | None:
    """Which port cannot be had, in a user's words; None if all can. `config` is nested, without dotted keys."""
    holders = {port: f"{who} itself" for port, who in TAKEN[placement].items()}
    for path, port in _ports(config):
        if port in holders:
            return f"{path} is {port}, the port of {holders[port]}; leave it out, and Gym chooses a free one"
        holders[port] = path
    return None


def _ports(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for instance, of_kinds in config.items():
        for kind in COMPONENT_TYPES:
            servers = of_kinds.get(kind) if isinstance(of_kinds, Mapping) else None
            for name, server in servers.items() if isinstance(servers, Mapping) else ():
                port = server.get("port") if isinstance(server, Mapping) else None
                if isinstance(port, int | str) and str(port).isdecimal():
                    yield f"{instance}.{kind}.{name}.port", int(port)
