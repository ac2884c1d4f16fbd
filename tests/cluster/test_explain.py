"""`kubectl explain`, the real one against a real API server: what a newcomer reads about a field."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import kubectl

ROOT = Path(__file__).resolve().parents[2]
JOBS = yaml.safe_load((ROOT / "crds/evals.nhx.io_agentevaljobs.yaml").read_text(encoding="utf-8"))
SPEC = JOBS["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def fields_below(path: str) -> dict[str, dict[str, Any]]:
    schema = SPEC
    for name in path.split(".")[2:]:
        schema = schema["properties"][name]
        schema = schema.get("items", schema)
    return schema["properties"]


@pytest.mark.parametrize(
    "path", ["aej.spec", "aej.spec.tasks", "aej.spec.target.gym", "aej.spec.models", "aej.spec.results"]
)
def test_every_field_is_explained_with_its_default(kubeconfig: Path, world: object, path: str) -> None:
    command = [str(kubectl.path()), f"--kubeconfig={kubeconfig}", "explain", path]
    told = " ".join(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())
    fields = fields_below(path)
    assert len(fields) >= 3
    for name, field in fields.items():
        head = rf" {name} <[^>]+>( -required-)? (enum: [^.]*? )?"
        assert re.search(head + re.escape(field["description"]), told), name
        assert ("default" in field) == bool(re.search(r"Default: \S+.*\.$", field["description"])), name
