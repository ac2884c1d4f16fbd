"""Whether an environment's dependencies are there: in this image, or as wheels in the package itself.

A sandbox reaches no package index. NeMo Gym would ask one all the same, or, since every component shares the image's
virtual environment here, start a server that then fails on an import. So each requirement that only an index could
meet is refused beforehand, by file and line.
"""

from __future__ import annotations

import re
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from functools import cached_property
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from sandboxed_gym.environment_package import EnvironmentFormat, load_environment_manifest

from ..api.gym_ports import COMPONENT_TYPES

WHEELS = "wheels"
_COMMENT = re.compile(r"(^|\s)#.*")
_EDITABLE = re.compile(r"(-e|--editable)[ =]+")
_GYM_ITSELF = re.compile(r"(nemo-gym(\[[^\]]*\])?\s*@\s*)?\.\./\.\./?")
"""How components of NeMo Gym name the Gym that they lie in: `-e nemo-gym[dev] @ ../../`."""
_DEVELOPMENT_EXTRAS = frozenset({"dev"})
"""Of nemo-gym: for its own tests, never imported by a server."""
_SHOWN = 10


class RequirementError(ValueError):
    """Requirements that nothing here can meet. Names each by file and line."""


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package."""

    file: Path
    name: str
    version: Version
    tags: frozenset[Tag]

    @property
    def shown(self) -> str:
        return f"{WHEELS}/{self.file.name}"

    @cached_property
    def requires(self) -> list[str]:
        """Its `Requires-Dist` lines. Raises `RequirementError` for a file that is no wheel."""
        try:
            with zipfile.ZipFile(self.file) as opened:
                names = [name for name in opened.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
                headers = BytesHeaderParser().parsebytes(opened.read(names[0]))
        except (zipfile.BadZipFile, IndexError, OSError) as error:
            raise RequirementError(f"{self.shown} is no wheel: it holds no METADATA that can be read") from error
        return headers.get_all("Requires-Dist") or []


class Installed:
    """Distributions of an environment by name; of this one, unless told otherwise."""

    def __init__(self, path: list[str] | None = None) -> None:
        found = metadata.distributions(path=path) if path is not None else metadata.distributions()
        self._found = {canonicalize_name(each.metadata["Name"]): each for each in found}

    def meets(self, wanted: Requirement) -> bool:
        """With its extras: their requirements are installed as well, at least by name and version."""
        found = self._found.get(canonicalize_name(wanted.name))
        if found is None or not wanted.specifier.contains(found.version, prereleases=True):
            return False
        extras = wanted.extras - (_DEVELOPMENT_EXTRAS if found.name == "nemo-gym" else set())
        return all(self.meets(each) for extra in extras for each in _of_extra(found.requires or (), extra))

    def version(self, name: str) -> str | None:
        found = self._found.get(canonicalize_name(name))
        return found.version if found else None


def check(environment: Path, installed: Installed | None = None, tags: Iterable[Tag] | None = None) -> None:
    """Raise `RequirementError` for what the package in `environment` needs and neither it nor the image has."""
    image = installed or Installed()
    wheels = _wheels(environment / WHEELS) if _installs_wheels(environment) else {}
    supported = frozenset(tags if tags is not None else sys_tags())
    problems = [*_unusable(wheels, supported), *_open_ends(wheels), *_unmet(environment, wheels, image)]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise RequirementError(
            f"the environment needs packages that only a package index has, and a sandbox reaches none: "
            f"{'; '.join(problems[:_SHOWN])}{more}. Put their wheels into {WHEELS}/ (format wheels-v1), or use a "
            f"gym-host image that holds them"
        )


def _installs_wheels(environment: Path) -> bool:
    manifest = load_environment_manifest(environment)
    return manifest.format is not EnvironmentFormat.NATIVE_V1


def _wheels(folder: Path) -> dict[str, Wheel]:
    found = {}
    for file in sorted(folder.glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(file.name)
        except InvalidWheelFilename as error:
            raise RequirementError(f"{WHEELS}/{file.name} is not named as a wheel: {error}") from error
        found[str(name)] = Wheel(file, str(name), version, tags)
    return found


def _unusable(wheels: Mapping[str, Wheel], supported: frozenset[Tag]) -> Iterator[str]:
    """Wheels for another Python or another kind of machine."""
    for wheel in wheels.values():
        if not wheel.tags & supported:
            yield f"{wheel.shown} is for another Python or machine ({', '.join(sorted(map(str, wheel.tags)))})"


def _open_ends(wheels: Mapping[str, Wheel]) -> Iterator[str]:
    """What wheels require and no wheel is: they are installed from among themselves alone."""
    for wheel in wheels.values():
        for text in wheel.requires:
            wanted = _parsed(text)
            if wanted is not None and _applies(wanted) and not _met_by(wheels, wanted):
                found = wheels.get(canonicalize_name(wanted.name))
                instead = f", and {WHEELS}/ has {found.version}" if found else f", and {WHEELS}/ does not have it"
                yield f"{wheel.shown} requires {str(wanted).partition(';')[0].strip()!r}{instead}"


def _unmet(environment: Path, wheels: Mapping[str, Wheel], image: Installed) -> Iterator[str]:
    """Lines of the components' own lists that neither a wheel nor the image meets."""
    for where, text in _lines(environment):
        wanted = _parsed(text)
        if wanted is None:
            yield f"{where}: {text!r} is no requirement by name and version"
        elif not _applies(wanted) or _met_by(wheels, wanted):
            continue
        elif wanted.url:
            yield f"{where}: {text!r} is to be fetched"
        elif canonicalize_name(wanted.name) in wheels:
            yield f"{where}: {text!r}, and {WHEELS}/ has {wheels[canonicalize_name(wanted.name)].version}"
        elif not image.meets(wanted):
            version = image.version(wanted.name)
            yield f"{where}: {text!r}" + (f", and the image has {version}" if version else "")


def _lines(environment: Path) -> Iterator[tuple[str, str]]:
    """`file, line n` and each requirement. A pyproject.toml goes before a requirements.txt, as in Gym."""
    for kind in COMPONENT_TYPES:
        for component in sorted((environment / kind).glob("*/")):
            project, listed = component / "pyproject.toml", component / "requirements.txt"
            if project.is_file():
                yield from _of_project(project, project.relative_to(environment).as_posix())
            elif listed.is_file():
                yield from _of_list(listed, environment, frozenset())


def _of_project(file: Path, shown: str) -> Iterator[tuple[str, str]]:
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequirementError(f"{shown} is not TOML: {error}") from error
    lines = file.read_text(encoding="utf-8").splitlines()
    for text in project.get("dependencies", []):
        number = next((number for number, line in enumerate(lines, 1) if text in line), 1)
        yield f"{shown}, line {number}", text


def _of_list(file: Path, environment: Path, seen: frozenset[Path]) -> Iterator[tuple[str, str]]:
    shown = file.relative_to(environment).as_posix()
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        text = _COMMENT.sub("", line).strip().rstrip("\\").strip()
        included = re.match(r"(-r|--requirement)[ =]+(.+)", text)
        if included:
            other = (file.parent / included[2]).resolve()
            if not other.is_file() or not other.is_relative_to(environment.resolve()):
                yield f"{shown}, line {number}", text
            elif other not in seen:
                yield from _of_list(other, environment.resolve(), seen | {other})
            continue
        text = _EDITABLE.sub("", text)
        # An option of pip says where to look, not what for.
        if text and not text.startswith("-") and not _GYM_ITSELF.fullmatch(text):
            yield f"{shown}, line {number}", text


def _parsed(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _applies(wanted: Requirement) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": ""})


def _met_by(wheels: Mapping[str, Wheel], wanted: Requirement) -> bool:
    found = wheels.get(canonicalize_name(wanted.name))
    if found is None or not wanted.specifier.contains(found.version, prereleases=True):
        return False
    return all(_met_by(wheels, each) for extra in wanted.extras for each in _of_extra(found.requires, extra))


def _of_extra(requires: Iterable[str], extra: str) -> Iterator[Requirement]:
    """What a distribution requires for one of its extras only."""
    for text in requires:
        wanted = _parsed(text)
        if wanted is None or wanted.marker is None or _applies(wanted):
            continue
        if wanted.marker.evaluate({"extra": extra}):
            wanted.marker = None
            yield wanted
