import os
import sys

import pytest

from devcluster import beside, paths, report
from devcluster.processes import all_pids

PROGRAM = "import sys, time; print('one', flush=True); time.sleep({seconds}); print('two'); sys.exit({code})"


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Has `Beside` run a program of the test's instead."""
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path)
    popen = beside.subprocess.Popen

    def instead(**values):
        program = [sys.executable, "-c", PROGRAM.format(**values)]
        monkeypatch.setattr(beside.subprocess, "Popen", lambda command, **options: popen(program, **options))
        return beside.Beside("images", "build")

    return instead


def test_what_it_said_before_and_says_from_then_on_is_shown(runs, capsys):
    with runs(seconds=0.3, code=0) as images:
        images.show()
    assert capsys.readouterr().out == "one\ntwo\n"


def test_a_failure_is_told_when_its_turn_comes(runs, capsys):
    with runs(seconds=0, code=3) as images, pytest.raises(report.DevclusterError, match="images build` failed"):
        images.show()
    assert capsys.readouterr().out == "one\ntwo\n"


def test_it_ends_when_what_it_runs_beside_fails(runs):
    with pytest.raises(report.DevclusterError, match="no cluster"), runs(seconds=600, code=0) as images:
        child = images._child.pid
        assert child in all_pids()
        raise report.DevclusterError("no cluster")
    assert images._child.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(child, 0)
