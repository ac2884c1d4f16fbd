"""Versions of the packages that a result is made by: the evaluator's own, and those of a Gym in its container."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

SDK_PACKAGE = "nemo-helix-plugin"
PACKAGES = (SDK_PACKAGE, "nemo-sandboxed-gym", "nhx-gym-operator")
GYM_PACKAGES = ("nemo-gym", "ray")


def deciding_versions() -> dict[str, str]:
    """Versions of the packages that decide about a result: ours, and where there is a Gym, of Gym's."""
    return _versions(PACKAGES, sys.path) | _versions(GYM_PACKAGES, _gym_path())


def own_packages() -> dict[str, str]:
    """Every package here with its version."""
    return _installed(tuple(sys.path))


def gym_packages() -> dict[str, str]:
    """Every package of Gym's; empty where there is no Gym."""
    return _installed(_gym_path())


def _gym_path() -> tuple[str, ...]:
    """Where the packages of the `gym` on PATH are. Only a colocated evaluator has one."""
    gym = shutil.which("gym")
    found = Path(gym).resolve().parents[1].glob("lib/python3*/site-packages") if gym else ()
    return tuple(str(path) for path in found)


def _versions(packages: Iterable[str], path: Iterable[str]) -> dict[str, str]:
    found = {package: next(iter(metadata.distributions(name=package, path=list(path))), None) for package in packages}
    return {package: distribution.version for package, distribution in found.items() if distribution}


@cache
def _installed(path: tuple[str, ...]) -> dict[str, str]:
    """Every package below these directories with its version; the first one found is the one that is imported."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions(path=list(path)):
        found.setdefault(distribution.name.lower(), distribution.version)
    return dict(sorted(found.items()))
