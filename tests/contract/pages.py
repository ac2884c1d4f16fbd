"""The installed pages, read as they are: their prose by line, their tables, their code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path


def pages() -> Path:
    """The folder of the pages on agent evaluation."""
    package = importlib.util.find_spec("nemo_helix_ext.cli")
    assert package and package.submodule_search_locations, "nemo-helix-plugin is not installed"
    return Path(next(iter(package.submodule_search_locations))) / "docs/evals/agent-eval"


def lines_of(name: str) -> list[str]:
    return (pages() / f"{name}.mdx").read_text(encoding="utf-8").splitlines()


def prose(name: str) -> dict[int, str]:
    """The lines of a page that say something: no front matter, code, headings, markup or table rulers."""
    said: dict[int, str] = {}
    fences = rulers = 0
    for number, line in enumerate(lines_of(name), 1):
        text = line.strip()
        rulers += text == "---" and rulers < 2
        fences += text.startswith("```")
        if rulers == 2 and fences % 2 == 0 and text and not re.match(r"```|#|<|---|\|[-| ]+\|$", text):
            said[number] = text
    return said


def table(name: str, first_column: str) -> list[list[str]]:
    """The rows of the one table whose first column has this title, in their cells."""
    lines = lines_of(name)
    (start,) = [number for number, line in enumerate(lines) if line.startswith(f"| {first_column} |")]
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
    return rows


def code(name: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = "\n".join(lines_of(name))
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def numbers(text: str) -> set[int]:
    """The lines that `12–14, 20` names."""
    spans = re.findall(r"(\d+)(?:–(\d+))?", text)
    return {line for first, last in spans for line in range(int(first), int(last or first) + 1)}
