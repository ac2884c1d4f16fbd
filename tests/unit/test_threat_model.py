"""docs/threat-model.md names tests that exist, and every attack that is made."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.cluster import ROOT

PAGE = (ROOT / "docs/threat-model.md").read_text()
BESIDE = (ROOT / "docs/security.md").read_text()
HOSTILE = ROOT / "tests/security/environment/resources_servers/hostile"
NAMED = sorted(set(re.findall(r"`(tests/\S+?\.py::test_\w+)`", PAGE + BESIDE)))
LEAST_ATTACKS = 25


def functions(file: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]


def attacks() -> set[str]:
    """Registered ones by name, and the forged answers."""
    registered = {f.name.replace("_", "-") for f in functions(HOSTILE / "attacks.py") if f.decorator_list}
    forged = {f.name.removeprefix("forge_") for f in functions(HOSTILE / "app.py") if f.name.startswith("forge_")}
    return registered | forged


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_the_page_names_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), name


def test_the_page_names_tests_at_all() -> None:
    assert len(NAMED) > 30


def test_every_attack_is_listed() -> None:
    found = attacks()
    assert len(found) >= LEAST_ATTACKS
    assert {attack for attack in found if f"`{attack}`" not in PAGE} == set()


def test_every_test_of_an_attack_is_named() -> None:
    written = {
        f"tests/security/{file.name}::{function.name}"
        for file in (ROOT / "tests/security").glob("test_*.py")
        for function in functions(file)
        if function.name.startswith("test_")
    }
    assert written - set(NAMED) == set()
