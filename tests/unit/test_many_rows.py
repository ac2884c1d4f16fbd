"""What `bench/many_rows.py` measures, held against the evaluator's default memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nhx_gym_operator.workloads.options import RoleResources

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
def test_100000_rows_are_read_journaled_scored_and_bundled_within_the_evaluators_default_memory() -> None:
    limit = RoleResources().evaluator["limits"]["memory"]
    assert limit.endswith("Gi")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/operator:{ROOT}/tests"}
    command = [sys.executable, str(ROOT / "bench/many_rows.py"), "100000"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=3600)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|")][2:]
    memory = {name: float(mib) for name, _, mib in rows}
    assert len(memory) == 4 and all(mib < 1024 * int(limit.removesuffix("Gi")) for mib in memory.values()), memory
