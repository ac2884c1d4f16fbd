"""docs/compatibility.md: no empty cell, no number twice, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from contract.pages import lines_of, numbers, pages, prose

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "compatibility.md"
NOT_YET = "not yet"
VERDICTS = ("**Same**", "**Differs**", "**No counterpart**", "**Not yet**")
TEST = re.compile(r"(unit|unit/policies|cluster|e2e|contract)/test_\w+\.py::test_\w+")


@dataclass(frozen=True)
class Row:
    number: str
    where: str
    """Lines of the page, as `12–14, 20`; in the sections that are of no page, what they are from."""
    said: str
    here: str
    shown_by: str

    @property
    def tests(self) -> list[str]:
        return [] if self.shown_by == NOT_YET else self.shown_by.split(", ")


def rows() -> list[Row]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert {len(each) for each in cells} == {5}, [each for each in cells if len(each) != 5]
    return [Row(*each) for each in cells if each[0] != "#"]


@cache
def functions_of(file: str) -> frozenset[str]:
    """The test functions of a file. Read and not collected, since that would import all of it in `make test-unit`."""
    nodes = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")).body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / "tests" / file).is_file() and name in functions_of(file)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.number)
def test_a_row_says_what_is_said_how_it_is_here_and_what_shows_it(row: Row) -> None:
    assert row.where and row.said and row.here.startswith(VERDICTS), row
    assert row.tests or row.here.startswith("**Not yet**"), "only what is not done yet may lack a test"
    for test in row.tests:
        assert TEST.fullmatch(test) and exists(test), f"{row.number} names {test}, which does not exist"


def test_no_number_stands_twice_and_none_is_left_out() -> None:
    counted = Counter(row.number for row in rows())
    assert counted.most_common(1)[0][1] == 1
    pages: dict[str, list[int]] = {}
    for number in counted:
        page, _, place = number.rpartition("-")
        pages.setdefault(page, []).append(int(place))
    assert {page: places for page, places in pages.items() if places != list(range(1, len(places) + 1))} == {}


def test_a_row_that_refers_to_another_refers_to_one_that_is_there() -> None:
    numbers = {row.number for row in rows()}
    pages = "|".join({number.rpartition("-")[0] for number in numbers})
    for row in rows():
        assert set(re.findall(rf"\b(?:{pages})-\d+\b", row.here)) <= numbers, row


def test_every_page_of_the_section_has_rows_or_a_reason_to_have_none() -> None:
    found = list(pages().glob("*.mdx"))
    text = TABLE.read_text(encoding="utf-8")
    assert len(found) > 10 and [page.name for page in found if page.name not in text] == []


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("runner", "gym-runner"),
        ("environment", "gym-custom-environment"),
        ("sandbox", "gym-sandbox-configuration"),
        ("results", "reading-results"),
        ("targets", "targets-and-runners"),
    ],
)
def test_no_line_of_a_page_about_gym_is_without_a_row(prefix: str, name: str) -> None:
    section = TABLE.read_text(encoding="utf-8").partition(f"## {name}.mdx")[2].partition("\n## ")[0]
    without = re.search(r"^Lines without a row.*?: (.*?)\(", section, flags=re.MULTILINE)
    assert without
    named = [numbers(row.where) for row in rows() if row.number.startswith(f"{prefix}-")]
    said = prose(name)
    missing = said.keys() - set().union(*named) - numbers(without[1])
    assert {line: said[line] for line in sorted(missing)} == {}
    assert all(lines and max(lines) <= len(lines_of(name)) for lines in named)
