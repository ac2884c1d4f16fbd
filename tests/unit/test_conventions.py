"""What holds for all of the package's code, and no tool checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nhx_gym_operator

PACKAGE = Path(nhx_gym_operator.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
SHORTENED = re.compile(
    r"(?<![.\w])(target\.gym|tasks\.(dataset|taskset|limit|taskIds)|models\[|results\.(persistent|objectStore)"
    r"|source\.(http|s3))"
)
SPEAKERS = ("api", "controller", "evaluator", "gym_host", "cli", "client", "submission")
"""Who tells a user of fields."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def nodes(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for folder in folders:
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            name = file.relative_to(PACKAGE)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                yield f"{name}:{getattr(node, 'lineno', 0)}", node


def test_a_message_names_a_field_by_its_whole_path() -> None:
    texts = {where: node.value for where, node in nodes(*SPEAKERS) if isinstance(node, ast.Constant)}
    texts = {where: text for where, text in texts.items() if isinstance(text, str)}
    assert any("spec.target.gym." in text for text in texts.values())
    assert {where: text for where, text in texts.items() if SHORTENED.search(text)} == {}


def test_a_page_names_a_field_by_its_whole_path() -> None:
    lines = {
        f"{page.name}:{number}": line
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    }
    assert any("spec.target.gym." in line for line in lines.values())
    assert {where: line for where, line in lines.items() if SHORTENED.search(line)} == {}


def test_a_page_says_by_name_which_python_installs_from_a_checkout() -> None:
    """An older `python` has an older pip, which reports conflicting dependencies instead."""
    lines = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
    installing = [line for line in lines if "install '.[" in line]
    assert installing and all(line.startswith("python3.12 -m venv") for line in installing)


def test_imports_inside_the_package_are_relative() -> None:
    imports = [(where, node) for where, node in nodes(".") if isinstance(node, ast.ImportFrom)]
    assert any(node.level for _, node in imports)
    assert [where for where, node in imports if not node.level and str(node.module).startswith(PACKAGE.name)] == []
