"""What `make environments` puts into docs/environments.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import environments
from bench.environments import BEGIN, END, HEAD, Measured, Played
from e2e.bundled import BY_NAME, OFFLINE

OLD_HEAD = "| `resourcesServer` | what it is | seconds |\n|---|---|---|\n"
MCQA = Measured(BY_NAME["mcqa"], Played(True, "5", 5, "1", 31.4, 864 * 2**20), Played(True, "5", 5, "1", 61.6, 2**30))


@pytest.mark.parametrize("head", [HEAD, OLD_HEAD], ids=["the page as it is", "other columns"])
def test_what_was_measured_is_put_into_the_page_and_all_else_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    page = environments.PAGE.read_text()
    assert HEAD in page
    copy = tmp_path / "environments.md"
    copy.write_text(page.replace(HEAD, head))
    monkeypatch.setattr(environments, "PAGE", copy)
    environments.write([MCQA])
    table = page.partition(BEGIN)[2].partition(END)[0].removeprefix(HEAD).splitlines(keepends=True)
    (old,) = [line for line in table if line.startswith("| `mcqa`")]
    new = "| `mcqa` | multiple choice | `simple_agent` | `mcqa_simple_agent` | 5 | 5 | 1 | 31 | 62 | 864 | 1024 |\n"
    assert len(table) == len(OFFLINE)
    assert copy.read_text() == page.replace(old, new)
