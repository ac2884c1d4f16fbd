"""The stages of a Containerfile, each as something that can be built and recognised on its own.

To find a stage in its layer cache, buildah reads all that was ever copied into it: a minute for a gigabyte of
dependencies, after each change of code. Here a stage is known by a hash over its text, the files of the source tree
that it copies, and the stages below it; that takes milliseconds.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..report import DevclusterError


@dataclass
class Stage:
    name: str
    parent: str
    lines: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # copied from the source tree, relative to it
    sources: list[str] = field(default_factory=list)  # stages copied from

    def text(self, images: Mapping[str, str]) -> str:
        """A Containerfile of its own: the stages below are replaced by the images they were built as."""
        first, *rest = self.lines
        first = first.replace(f"FROM {self.parent} ", f"FROM {images.get(self.parent, self.parent)} ")
        rest = [re.sub(r"--from=(\S+)", lambda match: f"--from={images[match[1]]}", line) for line in rest]
        return "\n".join([first, *rest]) + "\n"


def parse(text: str) -> dict[str, Stage]:
    stages: dict[str, Stage] = {}
    stage = None
    for line in _instructions(text):
        words = shlex.split(line)
        if words[0] == "FROM":
            if len(words) != 4:
                raise DevclusterError(f"Containerfile: write `FROM IMAGE AS NAME`, not {line!r}")
            stage = stages[words[3]] = Stage(name=words[3], parent=words[1])
        elif stage is None:
            raise DevclusterError(f"Containerfile: {line!r} stands before the first FROM")
        elif words[0] == "COPY":
            _note_copy(stage, words[1:])
        stage.lines.append(line)
    return stages


def below(stages: Mapping[str, Stage], name: str) -> list[str]:
    """The stages that stage `name` needs directly."""
    stage = stages[name]
    return [needed for needed in dict.fromkeys([stage.parent, *stage.sources]) if needed in stages]


def fingerprint(stages: Mapping[str, Stage], name: str, context: Path, base: str) -> str:
    """`base` identifies the image that the lowest stages start from."""
    if name not in stages:
        raise DevclusterError(f"the Containerfile has no stage {name!r}; it has {', '.join(stages)}")
    digest = hashlib.sha256(base.encode())
    digest.update("\n".join(stages[name].lines).encode())
    for source in stages[name].files:
        _add_tree(digest, context, source)
    for needed in below(stages, name):
        digest.update(fingerprint(stages, needed, context, base).encode())
    return digest.hexdigest()


def _instructions(text: str) -> list[str]:
    """One line per instruction: continued lines joined, comments left out."""
    result, pending = [], ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        result.append(pending.strip())
        pending = ""
    return result


def _note_copy(stage: Stage, words: list[str]) -> None:
    source = next((word.removeprefix("--from=") for word in words if word.startswith("--from=")), None)
    if source:
        stage.sources.append(source)
    else:
        stage.files += [word for word in words if not word.startswith("--")][:-1]


def _add_tree(digest, context: Path, source: str) -> None:
    path = context / source
    if not path.exists():
        raise DevclusterError(f"the Containerfile copies {source}, which is not in {context}")
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(context)} {file.stat().st_mode & 0o777:o}\0".encode())
            digest.update(file.read_bytes())
