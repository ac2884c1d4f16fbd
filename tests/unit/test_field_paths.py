"""How messages name a field of a job or a FileSet."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nhx_gym_operator

PACKAGE = Path(nhx_gym_operator.__file__).parent
BEGINNINGS = re.compile(r"(?<![.\w])(target\.gym|tasks\.dataset|models\[|results\.persistent|source\.(http|s3))")
SPEAKERS = ("controller", "evaluator", "gym_host", "cli")


def test_a_message_names_a_field_by_its_whole_path() -> None:
    files = [file for folder in SPEAKERS for file in (PACKAGE / folder).rglob("*.py")]
    texts = [
        (file.relative_to(PACKAGE).as_posix(), node.lineno, node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(texts) > 1000
    assert [text for text in texts if BEGINNINGS.search(text[2])] == []
