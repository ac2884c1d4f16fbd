"""What holds for all of the package's code, and no tool checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nhx_gym_operator

PACKAGE = Path(nhx_gym_operator.__file__).parent
SHORTENED = re.compile(r"(?<![.\w])(target\.gym|tasks\.dataset|models\[|results\.persistent|source\.(http|s3))")
SPEAKERS = ("controller", "evaluator", "gym_host", "cli")
"""Who tells a user of fields."""


def nodes(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for folder in folders:
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                yield f"{file.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}", node


def test_a_message_names_a_field_by_its_whole_path() -> None:
    texts = {where: node.value for where, node in nodes(*SPEAKERS) if isinstance(node, ast.Constant)}
    texts = {where: text for where, text in texts.items() if isinstance(text, str)}
    assert any("spec.target.gym." in text for text in texts.values())
    assert {where: text for where, text in texts.items() if SHORTENED.search(text)} == {}


def test_imports_inside_the_package_are_relative() -> None:
    imports = [(where, node) for where, node in nodes(".") if isinstance(node, ast.ImportFrom)]
    assert any(node.level for _, node in imports)
    assert [where for where, node in imports if not node.level and str(node.module).startswith(PACKAGE.name)] == []
