"""What is in an image, found from inside by whoever runs the container. Runs in every image, so it needs Python alone.

python image_facts.py MODULE    # imports it too, and prints one line of JSON
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from pathlib import Path

BUILDERS = re.compile(
    r"((x86_64|aarch64)-linux-gnu-)?"
    r"(c?cc|[gc]\+\+|gcc|cpp|clang(\+\+)?|tcc|cc1(plus)?|collect2|ld(\.(bfd|gold|lld))?|as|go|gofmt|rustc|cargo|g?make|cmake|ninja)"
    r"(-\d[\d.]*)?"
)
"""Programs that compile, link, or call those that do."""
KNOWN = "tini"
"""A program that is in every image: the search that misses it has seen nothing."""
INSTALLERS = ("pip", "setuptools", "wheel", "ensurepip")
"""Python packages that install others, or build them."""
NOT_OF_THE_IMAGE = ("/proc", "/sys", "/dev")


def programs() -> list[str]:
    """The builders, and `KNOWN`, wherever they lie."""
    found = []
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in NOT_OF_THE_IMAGE]
        for name in files:
            if name == KNOWN or BUILDERS.fullmatch(name):
                file = os.path.join(folder, name)
                if os.access(file, os.X_OK):
                    found.append(file)
    return sorted(found)


def environments() -> list[Path]:
    return sorted(Path("/opt").glob("*/lib/python3*/site-packages"))


def installers() -> list[str]:
    library = Path(os.__file__).parent
    folders = [*environments(), library, library.parent / "python3/dist-packages"]
    return [str(folder / name) for folder in folders for name in INSTALLERS if (folder / name).exists()]


def uncompiled(environment: Path) -> tuple[int, list[str]]:
    """How many modules there are, and those without a compiled file. Templates that are no Python have none."""
    number, lacking = 0, []
    for folder, _, files in os.walk(environment):
        for file in (Path(folder, name) for name in files if name.endswith(".py")):
            number += 1
            if not os.path.exists(importlib.util.cache_from_source(str(file))) and is_python(file):
                lacking.append(str(file))
    return number, lacking


def is_python(file: Path) -> bool:
    try:
        compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def unreadable(top: str) -> list[str]:
    """Files and folders that this user may not read."""
    errors: list[OSError] = []
    every = [os.path.join(folder, name) for folder, _, files in os.walk(top, onerror=errors.append) for name in files]
    return [str(error.filename) for error in errors] + [file for file in every if not os.access(file, os.R_OK)]


def main(module: str) -> None:
    importlib.import_module(module)
    compiled = {environment.parts[2]: uncompiled(environment) for environment in environments()}
    facts = {
        "user": f"{os.getuid()}:{os.getgid()}",
        "programs": programs(),
        "installers": installers(),
        "modules": {environment: number for environment, (number, _) in compiled.items()},
        "uncompiled": [file for _, lacking in compiled.values() for file in lacking],
        "unreadable": unreadable("/opt"),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
