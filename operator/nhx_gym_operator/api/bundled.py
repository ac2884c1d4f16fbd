"""Which of NeMo Gym's own resources servers the images can run.

The list is made when the images are: `bundled_servers.json` beside this module maps each server to
the requirements that it names and the image lacks: `{"resources_servers/mcqa": {"missing": []}, …}`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

PREFIX = "resources_servers/"
LIST_FILE = "bundled_servers.json"


def missing_dependencies(resources_server: str) -> list[str] | None:
    """What the image lacks to run that server: empty if nothing, None if there is no such server.

    `resources_server` is the name as in a job's `resourcesServer`, e.g. `mcqa`.
    """
    return _servers().get(PREFIX + resources_server.removeprefix(PREFIX))


def known_servers() -> list[str]:
    """Names of the servers that lack nothing, sorted: for a message that offers alternatives."""
    return sorted(name.removeprefix(PREFIX) for name, missing in _servers().items() if not missing)


@cache
def _servers() -> dict[str, list[str]]:
    listed = json.loads(files(__package__).joinpath(LIST_FILE).read_text(encoding="utf-8"))
    return {name: list(entry["missing"]) for name, entry in listed.items() if name.startswith(PREFIX)}
