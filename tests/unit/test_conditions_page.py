"""docs/conditions.md against the code: every type and reason, when it is used, and what to do."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest

from nhx_gym_operator.api import conditions
from nhx_gym_operator.cli import conditions_page

PAGE = Path(__file__).resolve().parents[2] / "docs/conditions.md"
ENUMS = [
    value
    for value in vars(conditions).values()
    if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
]


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8") == conditions_page.render(), "run: make crds"


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_every_word_that_a_script_may_match_is_on_the_page(enum: type[StrEnum]):
    page = conditions_page.render()
    assert set(conditions_page.meanings(enum)) == {member.value for member in enum}
    assert [member for member in enum if f"| `{member}` | " not in page] == []


def test_a_reason_that_says_nothing_of_itself_is_refused(monkeypatch: pytest.MonkeyPatch):
    source = 'class Silent(StrEnum):\n    """Reasons."""\n    A = "A"\n    B = "B"\n    """Said."""\n'
    monkeypatch.setattr(conditions_page.inspect, "getsource", lambda _: source)
    with pytest.raises(ValueError, match=r"A says nothing"):
        conditions_page.meanings(conditions.StagedReason)


def test_what_to_do_has_capitals_where_a_job_has_names():
    page = conditions_page.render()
    assert "`kubectl delete aej JOB -n NAMESPACE`" in page and "{" not in page.replace("{suspend: false}", "")


def test_the_generator_writes_one_file(tmp_path: Path):
    assert conditions_page.main([]) == 2
    assert conditions_page.main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == conditions_page.render()
