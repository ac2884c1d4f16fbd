"""report.html as a real browser shows it, in a network namespace without an interface."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from unit.evaluator_fakes import row, world
from unit.test_evaluator_report import HOSTILE, Page, wrong_on_two
from unit.test_evaluator_run import bundle, finish

pytestmark = pytest.mark.nightly
SECONDS = 120
CHROMIUM = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
WIDTH, HEIGHT = 1200, 1600


def browse(profile: Path, page: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    alone = ["unshare", "--map-root-user", "--net"]
    size = f"--window-size={WIDTH},{HEIGHT}"
    argv = [*alone, *CHROMIUM, f"--user-data-dir={profile}", size, *arguments, page.as_uri()]
    return subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=True)


async def test_a_browser_without_a_network_shows_rewards_failures_and_runs_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].verify = wrong_on_two
        rows = [row(number) for number in range(3)]
        rows[0]["responses_create_params"]["input"] = [{"role": "user", "content": f"{HOSTILE} question 0"}]
        await finish(w.evaluation(w.plan(rows, min_coverage=0.1)), *w.hosts)
        page = bundle(w.paths) / "report.html"
    shown = browse(tmp_path / "profile", page, "--dump-dom")
    dom = Page(shown.stdout)
    assert [line[2] for line in dom.rows("Rewards")] == ["0.500", "0.500", "none"]
    assert all("no such table" in line[3] for line in dom.rows("Failures")) and len(dom.rows("Failures")) == 2
    assert "alert(1)" in dom.text and not [tag for tag, _ in dom.elements if tag in ("script", "img")]
    assert ":CONSOLE" not in shown.stderr, "the page asked for something that its policy refuses"

    picture = tmp_path / "report.png"
    browse(tmp_path / "profile", page, f"--screenshot={picture}")
    header = picture.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (WIDTH, HEIGHT)
