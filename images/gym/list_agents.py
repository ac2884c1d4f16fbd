"""List NeMo Gym's agent instances: which agent each name that `agentRefName` may have is an instance of.

    list_agents.py ENVIRONMENT LIST

LIST is a JSON object from the instance's name to the agent's: {"mcqa_simple_agent": "simple_agent", ...}, of all
configurations that come with NeMo Gym. A name that two of them give to different agents is left out.
"""

import json
import sys
from pathlib import Path

import yaml

KIND = "responses_api_agents"


def instances(config: object):
    """(instance, agent) of each agent that a configuration declares."""
    for name, instance in config.items() if isinstance(config, dict) else ():
        for agent in (instance.get(KIND) or {}) if isinstance(instance, dict) else ():
            yield name, agent


def main(environment: Path, listing: Path) -> None:
    site = next(environment.glob("lib/python3*/site-packages"))
    found: dict[str, set[str]] = {}
    for folder in ("resources_servers", KIND):
        for config in site.glob(f"{folder}/*/configs/**/*.yaml"):
            for name, agent in instances(yaml.safe_load(config.read_text())):
                found.setdefault(name, set()).add(agent)
    agents = {name: next(iter(found[name])) for name in sorted(found) if len(found[name]) == 1}
    listing.parent.mkdir(parents=True, exist_ok=True)
    listing.write_text(json.dumps(agents, indent=1) + "\n")
    print(f"{len(agents)} instances of agents in {environment}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
