"""Link one shared environment for every bundled server that can run in it, and list what each other server lacks.

    link_servers.py ENVIRONMENT LINKS LIST

NeMo Gym makes a virtual environment per server from a package index, unless LINKS/<type>/<server>/.venv is there. In a
sandbox there is no index, so the links decide which servers can start. LIST is a JSON object from "<type>/<server>" to
{"missing": [...]}: what the server declares and the environment lacks, or the first module that app.py fails to import.
"""

import importlib.metadata
import json
import os
import re
import sys
import tomllib
from multiprocessing import get_context
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

SERVER_TYPES = ("resources_servers", "responses_api_agents", "responses_api_models")
# Extras of nemo-gym that are for its own tests and never imported by a server.
DEVELOPMENT_EXTRAS = {"dev"}
# Far more than any needs: the list must not depend on how busy the building machine is.
IMPORT_SECONDS = 600


def declared_requirements(server: Path) -> list[str]:
    project = server / "pyproject.toml"
    if project.exists():
        return tomllib.loads(project.read_text())["project"].get("dependencies", [])
    lines = (server / "requirements.txt").read_text().splitlines()
    return [line for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines) if line]


def unmet(requirement: str) -> str | None:
    """The requirement as written, or None if the environment meets it."""
    editable = re.match(r"-e\s+(.*)", requirement)
    if editable:
        requirement = re.sub(r"\s*@\s*\.\./.*", "", editable.group(1))
        if requirement.startswith("../.."):
            return None  # nemo-gym by its path
    if requirement.startswith("-"):
        return None  # an option of pip
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:
        return requirement
    return None if met(parsed) else requirement


def met(requirement: Requirement) -> bool:
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        return True
    try:
        distribution = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    if not requirement.specifier.contains(distribution.version, prereleases=True):
        return False
    wanted = requirement.extras - DEVELOPMENT_EXTRAS
    return all(met(other) for extra in wanted for other in requirements_of_extra(distribution, extra))


def requirements_of_extra(distribution, extra: str):
    for text in distribution.requires or []:
        requirement = Requirement(text)
        if (
            requirement.marker
            and not requirement.marker.evaluate({"extra": ""})
            and requirement.marker.evaluate({"extra": extra})
        ):
            requirement.marker = None
            yield requirement


def import_app(server: Path, answers) -> None:
    """As NeMo Gym runs it: `python app.py` in the server's folder, with that folder on the path."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    os.chdir(server)
    sys.path.insert(0, str(server))
    try:
        import app  # noqa: F401
    except ModuleNotFoundError as error:
        answers.put(f"module {error.name}")
    except BaseException as error:
        answers.put(f"{type(error).__name__} on import of app.py: {error}".splitlines()[0])
    else:
        answers.put(None)


def import_failure(server: Path) -> str | None:
    """In a process of its own, forked after the common imports, which take seconds."""
    context = get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=import_app, args=(server, answers))
    process.start()
    process.join(IMPORT_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return f"app.py is not imported within {IMPORT_SECONDS} s"
    return answers.get() if not answers.empty() else f"app.py ends the process with code {process.exitcode}"


def missing(server: Path) -> list[str]:
    lacking = [requirement for requirement in map(unmet, declared_requirements(server)) if requirement]
    if lacking:
        return lacking
    failure = import_failure(server)
    return [failure] if failure else []


def is_server(path: Path) -> bool:
    return (path / "app.py").exists() and ((path / "requirements.txt").exists() or (path / "pyproject.toml").exists())


def main(environment: Path, links: Path, listing: Path) -> None:
    import nemo_gym.server_utils  # noqa: F401  shared by the forked imports

    site = next(environment.glob("lib/python3*/site-packages"))
    result = {}
    for kind in SERVER_TYPES:
        for server in sorted(filter(is_server, (site / kind).iterdir())):
            lacking = missing(server)
            result[f"{kind}/{server.name}"] = {"missing": lacking}
            if not lacking:
                (links / kind / server.name).mkdir(parents=True, exist_ok=True)
                (links / kind / server.name / ".venv").symlink_to(environment)
    listing.parent.mkdir(parents=True, exist_ok=True)
    listing.write_text(json.dumps(result, indent=1) + "\n")
    linked = sum(not entry["missing"] for entry in result.values())
    print(f"{linked} of {len(result)} bundled servers can run in {environment}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
