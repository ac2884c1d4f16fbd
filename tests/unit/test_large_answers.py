"""What `bench/large_answers.py` measures, held against the evaluator's default memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nhx_gym_operator.workloads.options import RoleResources

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["text", "values", "calls"])
def test_64_hosts_that_answer_all_they_may_at_once_do_not_outgrow_the_evaluator(kind: str) -> None:
    limit = RoleResources().evaluator["limits"]["memory"]
    assert limit.endswith("Gi")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/operator:{ROOT}/tests:{ROOT}"}
    command = [sys.executable, str(ROOT / "bench/large_answers.py"), kind, "64"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=3600)
    assert done.stderr.startswith("Complete"), done.stderr
    assert 100 < int(done.stdout) < 1024 * int(limit.removesuffix("Gi"))
