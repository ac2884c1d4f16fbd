"""docs/architecture.md leads to places that are there, and to every policy."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator/nhx_gym_operator"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
TABLE = PAGE[PAGE.index("## Where is …?") :]
NAMED = set(re.findall(r"`(/?[\w./-]+(?:\.\w+|/))`", TABLE))


def is_there(named: str) -> bool:
    """A path from the root begins with `/`. One that stands beside another is named by its end alone."""
    if named.startswith("/"):
        return (ROOT / named[1:]).exists()
    return (PACKAGE / named).exists() or any(PACKAGE.rglob(named)) or any((ROOT / "charts").rglob(named))


def test_every_place_that_the_page_names_is_there() -> None:
    assert "controller/decide.py" in NAMED and "/devcluster/" in NAMED
    assert [named for named in sorted(NAMED - {"operator/nhx_gym_operator/"}) if not is_there(named)] == []


def test_every_policy_is_on_the_page() -> None:
    policies = sorted(file.name for file in (PACKAGE / "controller/policies").glob("[a-z]*.py"))
    named = {path.rpartition("/")[2] for path in NAMED}
    assert "retry.py" in policies and [name for name in policies if name not in named] == []
