"""Which versions an outcome names."""

from __future__ import annotations

from pathlib import Path

import pytest

from nhx_gym_operator.evaluator.versions import deciding_versions


def _environment(root: Path, **versions: str) -> Path:
    """A virtual environment with a `gym` command, linked from elsewhere as in the images."""
    gym = root / "gym-environment/bin/gym"
    gym.parent.mkdir(parents=True)
    gym.write_text("#!/bin/sh\n")
    gym.chmod(0o755)
    for name, version in versions.items():
        info = root / f"gym-environment/lib/python3.13/site-packages/{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    link = root / "bin/gym"
    link.parent.mkdir()
    link.symlink_to(gym)
    return link.parent


def test_versions_name_the_packages_of_the_gym_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(_environment(tmp_path, nemo_gym="0.5.0", ray="2.60.0")))
    versions = deciding_versions()
    assert versions["nemo-gym"] == "0.5.0"
    assert versions["ray"] == "2.60.0"
    assert versions["nemo-helix-plugin"] == "0.8.1"


def test_versions_do_without_a_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(deciding_versions()) <= {"nemo-helix-plugin", "nemo-sandboxed-gym", "nhx-gym-operator"}
