"""The plugin as users get it: a wheel, installed into an empty environment, and found by kubectl on PATH."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.installations import COLOCATED
from e2e.runs import Run
from support import cluster
from support.cluster import ROOT

pytestmark = pytest.mark.nightly

INSTALL_SECONDS = 600
"""From a package index."""
HERE = f"--namespace={COLOCATED.jobs}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=INSTALL_SECONDS)
    pip = [folder / "venv/bin/python", "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", f"--wheel-dir={folder}", ROOT], check=True, timeout=INSTALL_SECONDS)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", f"{wheel}[cli]"], check=True, timeout=INSTALL_SECONDS)
    return folder / "venv/bin"


def kubectl(programs: Path, *arguments: str) -> list[str]:
    """Lines that kubectl prints with these programs on PATH, and no others of ours."""
    path = f"{programs}{os.pathsep}{cluster.environment()['PATH']}"
    return cluster.run(["kubectl", *arguments], extra={"PATH": path, "PYTHONPATH": ""}).splitlines()


def test_the_wheel_alone_is_a_plugin_that_shows_a_job(programs: Path, mcqa_colocated: Run) -> None:
    origin = subprocess.run(
        [programs / "python", "-Pc", "import nhx_gym_operator; print(nhx_gym_operator.__file__)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert origin.startswith(str(programs.parent))
    (first, *_) = csv.DictReader(kubectl(programs, "nhx", "results", "mcqa", HERE, "--output=csv"))
    assert float(first["value"]) == mcqa_colocated.aggregates["gym_reward.reward"]["value"]


def test_kubectls_completion_asks_the_plugin(programs: Path, mcqa_colocated: Run) -> None:
    assert kubectl(programs, "__complete", "nhx", "ca") == ["cancel\tEnd jobs.", ":4"]
    *jobs, directive = kubectl(programs, "__complete", "nhx", "explain", HERE, "mc")
    assert "mcqa" in jobs and directive == ":4"
