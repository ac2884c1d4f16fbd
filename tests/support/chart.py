"""The chart, and the Helm that renders it for tests."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from devcluster import paths

CHART = Path(__file__).resolve().parents[2] / "charts/nhx-gym-operator"
HELM_SECONDS = 60
KUBE_VERSION = "--kube-version=1.37.2"
"""Without a cluster to ask, a Helm 3 built from source takes a version from years ago."""


@cache
def helm_binary() -> str:
    named = os.environ.get("HELM")
    built = paths.bin_path("helm")
    if named:
        return named
    if built.is_file():
        return str(built)
    pytest.fail(f"No Helm at {built}. `make cluster` builds it; HELM=/path/to/helm names another one.")


def helm(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm_binary(), *arguments, *([] if values is None else ["--values=-"])],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=HELM_SECONDS,
        # Neither a cluster nor plugins of whoever runs the tests.
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/dev/null"},
    )
