"""The stock runtime's own installation of a package's wheels, with the variables that a host sets for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nhx_gym_operator.api.wire.plans import HostPlan
from nhx_gym_operator.gym_host.gym_config import environment_variables
from unit.test_gym_host_config import plan
from unit.test_gym_host_requirements import MANIFEST, wheel

INSTALL = """
import json, os, subprocess, sys
from sandboxed_gym.environment_package import load_environment_package
from sandboxed_gym.runtime import gym_host_runtime as runtime
environment, work = sys.argv[1:]
runtime._install_wheels_v1_dependencies(load_environment_package(environment), work)
import tiny
child = subprocess.run([sys.executable, "-c", "import tiny; print(tiny.__file__)"], capture_output=True, text=True)
print(json.dumps({"here": tiny.__file__, "in a child": child.stdout.strip(), "offline": os.environ.get("UV_OFFLINE")}))
"""


def variables(host: HostPlan, home: Path) -> dict[str, str]:
    """As a host starts Gym, in a container whose uv lies beside its Python."""
    inherited = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/bin:/bin", "HOME": str(home)}
    return inherited | environment_variables(host, "{}", "token", environment=True, inherited=inherited)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    root = tmp_path / "environment"
    config = root / "resources_servers/tiny/configs/tiny.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("tiny:\n  resources_servers:\n    tiny:\n      entrypoint: app.py\n")
    (root / "nemo-environment.yaml").write_text(MANIFEST.format("wheels-v1"))
    wheel(root, "tiny", "1.0", "helper>=1", files={"tiny.py": "import helper\n"})
    wheel(root, "helper", "1.2", files={"helper.py": ""})
    return root


def test_wheels_are_installed_from_among_themselves_without_home_cache_or_index(
    environment: Path, tmp_path: Path
) -> None:
    work, home = tmp_path / "work", tmp_path / "no such home"
    work.mkdir()
    command = [sys.executable, "-c", INSTALL, str(environment), str(work)]
    done = subprocess.run(command, env=variables(plan(), home), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    installed = str(work / "wheels-v1-site-packages/tiny.py")
    assert found == {"here": installed, "in a child": installed, "offline": "1"}
    assert not home.exists()
