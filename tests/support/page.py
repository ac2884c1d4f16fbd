"""The files and commands that a page of the documentation shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FILE = re.compile(r"^`(?P<path>[^`\n]+)`:\n\n```[a-z]+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```sh(?P<label>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_YAML = re.compile(r"^```yaml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    text: str

    @classmethod
    def read(cls, file: Path) -> Page:
        return cls(file.read_text(encoding="utf-8"))

    def files(self) -> list[tuple[str, str]]:
        """Path and content of each block that follows a line of the form "`path`:", in the page's order."""
        return [(found["path"], found["text"]) for found in _FILE.finditer(self.text)]

    def commands(self, label: str = "") -> str:
        """The shell commands of the blocks that bear the label."""
        return "".join(found["text"] for found in _COMMANDS.finditer(self.text) if found["label"].strip() == label)

    def yaml(self) -> list[str]:
        return [found["text"] for found in _YAML.finditer(self.text)]
