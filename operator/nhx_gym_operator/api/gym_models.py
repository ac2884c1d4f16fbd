"""How a job's models stand in Gym's own configuration: the same names and values in both placements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .wire.endpoints import MODEL_PATH

TOKEN_ENV = "NHX_HOST_TOKEN"
"""Variable of Gym's processes with the job token. Gym's configuration refers to it, so that the token
stands in no argument and in no file."""
IN_GYM = Path(__file__).parents[1] / "in_gym"
"""On the search path of Gym's processes, whose Python imports `sitecustomize` from it."""
FIELDS = {"base_url": "baseUrl", "api_key": "apiKey", "model_name": "model"}
"""What Gym is told of a model, and the field of `spec.models[]` that it comes from."""


def search_path(inherited: str) -> str:
    """PYTHONPATH of Gym's processes, from what it would be without us."""
    return ":".join(filter(None, (str(IN_GYM), inherited)))


def setting(model: str, what: str) -> str:
    """Name of one of a model's settings in Gym's configuration: `safety_judge_base_url`."""
    return f"{model.replace('-', '_')}_{what}"


def model_settings(gateway: str, models: Mapping[str, str]) -> dict[str, str]:
    """The settings of every model, with the gateway at `gateway` (`http://HOST:PORT`) in the endpoint's
    place. `models` maps the job's name of a model to the endpoint's."""
    settings: dict[str, str] = {}
    for name, model in models.items():
        settings[setting(name, "base_url")] = gateway + MODEL_PATH.format(name=name)
        settings[setting(name, "api_key")] = f"${{oc.env:{TOKEN_ENV}}}"
        settings[setting(name, "model_name")] = model
    return settings
