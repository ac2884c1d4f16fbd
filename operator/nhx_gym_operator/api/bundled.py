"""Which of NeMo Gym's own components the images hold, and which of its resources servers they can run.

The lists beside this module are made when the images are. `bundled_servers.json` maps each component to the
requirements that it names and the image lacks: `{"resources_servers/mcqa": {"missing": []}, …}`; `bundled_agents.json`
each instance in Gym's own configurations to the agent that it is of: `{"mcqa_simple_agent": "simple_agent", …}`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

PREFIX = "resources_servers/"
AGENTS = "responses_api_agents/"
LIST_FILE = "bundled_servers.json"
INSTANCES_FILE = "bundled_agents.json"


def missing_dependencies(resources_server: str) -> list[str] | None:
    """What the image lacks to run that server: empty if nothing, None if there is no such server.

    `resources_server` is the name as in a job's `resourcesServer`, e.g. `mcqa`.
    """
    return _components().get(PREFIX + resources_server.removeprefix(PREFIX))


def known_servers() -> list[str]:
    """Names of the servers that lack nothing, sorted: for a message that offers alternatives."""
    return sorted(name.removeprefix(PREFIX) for name in _named(PREFIX) if not _components()[name])


def known_agents() -> list[str]:
    """Names of the agents, as in a job's `agent`, sorted."""
    return sorted(name.removeprefix(AGENTS) for name in _named(AGENTS))


def agent_of(instance: str) -> str | None:
    """The agent that a name, as in a job's `agentRefName`, is an instance of; None if Gym's configurations lack it."""
    return _instances().get(instance)


def _named(prefix: str) -> list[str]:
    return [name for name in _components() if name.startswith(prefix)]


@cache
def _components() -> dict[str, list[str]]:
    listed = json.loads(files(__package__).joinpath(LIST_FILE).read_text(encoding="utf-8"))
    return {name: list(entry["missing"]) for name, entry in listed.items()}


@cache
def _instances() -> dict[str, str]:
    return json.loads(files(__package__).joinpath(INSTANCES_FILE).read_text(encoding="utf-8"))
