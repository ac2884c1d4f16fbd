"""Stands in for the composition of Gym's configuration: a light host has none to compose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api.gym_models import TOKEN_ENV
from ..api.wire.endpoints import MODEL_PATH
from ..api.wire.plans import HostPlan

VENVS_DIR = "/job/work/venvs"
ALLOWED_ENV = "LIGHT_HOST"
"""A job of a test sets it with `envVars`. Whoever gets this image by accident sets it not."""
CONFIG_ENV = "LIGHT_HOST_CONFIG"


class ConfigError(ValueError):
    """As the launcher knows it."""


@dataclass(frozen=True)
class Composition:
    config: dict[str, Any]


def compose(plan: HostPlan, *, install_root: Path, environment: Path | None = None) -> Composition:
    """Where the model is, and whose rollouts these are. Raises `ConfigError` for a job that is none of a test."""
    if plan.target.env_vars.get(ALLOWED_ENV) != "1":
        raise ConfigError(
            "this image is the light gym host of the tests, which runs no environment: "
            "set images.gymHost to the real one"
        )
    url = plan.evaluator_url + MODEL_PATH.format(name="policy")
    return Composition({"url": url, "model": plan.models["policy"], "uid": plan.uid})


def require_runnable(composition: Composition, venvs: Path, listing: Path) -> None:
    """Nothing is started."""


def environment_variables(plan: HostPlan, config: str, token: str, *, environment: bool) -> dict[str, str]:
    return {CONFIG_ENV: config, TOKEN_ENV: token}
