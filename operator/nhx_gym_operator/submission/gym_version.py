"""Whether the Gym of this machine is the images'."""

from __future__ import annotations

import json
import shutil
import subprocess

GYM_VERSION = "0.5.0"
"""NeMo Gym in the images; a test holds it against pyproject.toml. An administrator's own image may have another:
`status.ran.versions` of a job says which one ran."""
_TIMEOUT_SECONDS = 60.0
"""Gym imports Ray first."""


def local_gym_version() -> str | None:
    """Version of the `gym` on PATH, which is the one that a local run takes. None if there is none, or it won't say."""
    gym = shutil.which("gym")
    if gym is None:
        return None
    try:
        done = subprocess.run(
            [gym, "--version", "--json"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, errors="replace"
        )
        version = json.loads(done.stdout)["nemo_gym"]
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        return None
    return version if isinstance(version, str) else None


def version_warning() -> str | None:
    """What to tell a submitter whose local runs use another Gym than the job will; None if there is nothing to tell."""
    local = local_gym_version()
    if local is None or local == GYM_VERSION:
        return None
    return (
        f"the gym on your PATH is NeMo Gym {local} and the job's is {GYM_VERSION}: rewards may differ from those of a "
        f"local run. `uv pip install nemo-gym=={GYM_VERSION}` makes them the same"
    )
