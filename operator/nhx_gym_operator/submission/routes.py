"""From the models of a spec file to those of a job.

A spec file names a model's endpoint in Gym's own settings: `policy_base_url`, `policy_model_name` and `policy_api_key`
in `hydra_params`, and a further model likewise under its own name. A job has `models` for that, since its Gym speaks
to the evaluator alone and is never given a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..api import gym_models
from ..api.constants import POLICY_MODEL
from ..api.credentials import is_credential
from ..api.models import BASE_URL, MODEL_NAME, ModelSpec
from ..api.resource import SecretValue
from .errors import SubmissionError

NO_KEY = "not-used"
"""What gym-custom-environment.mdx writes as `policy_api_key` of an endpoint that takes none."""
_VARIABLE = re.compile(r"\$\{oc\.env:([A-Za-z_][A-Za-z0-9_]*)\}\Z")
_SETTING = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}\Z")
_TEMPLATE = re.compile(r"\$\{[^}]+\}\Z")

type SecretOf = Callable[[str, str], SecretValue]
"""The Secret behind a reference, given the field it stands in and the reference."""


@dataclass(frozen=True)
class Route:
    """The models, and what of the settings and variables is left for Gym."""

    models: list[ModelSpec]
    hydra_params: dict[str, Any]
    env_secrets: dict[str, SecretValue]


def route_of(
    hydra_params: Mapping[str, Any], env_secrets: Mapping[str, str], given: Sequence[ModelSpec], secret_of: SecretOf
) -> Route:
    """`given` are models that the submitter states beside the file; they win over the same name in the file."""
    stated = {model.name: model for model in given}
    names = [name for name in _models_in(hydra_params) if name not in stated]
    keys = {name: _key_variable(name, hydra_params, env_secrets) for name in (*names, *stated)}
    found = {name: _model(name, hydra_params, _secret(keys[name], env_secrets, secret_of)) for name in names}
    models = _policy_first({**found, **stated})
    settings = {gym_models.setting(name, what) for name in models for what in gym_models.FIELDS}
    rest = {key: value for key, value in hydra_params.items() if key not in settings}
    _refuse_credentials(rest)
    variables = {variable: gym_models.setting(name, "api_key") for name in names if (variable := keys[name])}
    _refuse_readers(rest, variables)
    left = {
        name: secret_of(f"target.env_secrets.{name}", reference)
        for name, reference in env_secrets.items()
        if name not in variables
    }
    _refuse_model_secrets(left, models)
    return Route(list(models.values()), rest, left)


def _models_in(params: Mapping[str, Any]) -> Iterator[str]:
    """`policy`, if anything is said of it, and whatever else has both an address and a model."""
    if any(gym_models.setting(POLICY_MODEL, what) in params for what in gym_models.FIELDS):
        yield POLICY_MODEL
    suffix = gym_models.setting("", "base_url")
    for key in params:
        name = key.removesuffix(suffix).replace("_", "-")
        if not key.endswith(suffix) or name == POLICY_MODEL or not re.fullmatch(MODEL_NAME, name) or len(name) > 32:
            continue
        if gym_models.setting(name, "model_name") in params:
            yield name


def _policy_first(models: Mapping[str, ModelSpec]) -> dict[str, ModelSpec]:
    policy = models.get(POLICY_MODEL)
    if policy is None:
        raise SubmissionError(
            "nothing says where the model under evaluation is: set target.hydra_params.policy_base_url and "
            "policy_model_name, or state the model `policy` beside the target"
        )
    return {POLICY_MODEL: policy, **models}


def _model(name: str, params: Mapping[str, Any], key: SecretValue | None) -> ModelSpec:
    address, model = (gym_models.setting(name, what) for what in ("base_url", "model_name"))
    values = {field: _text(field, params) for field in (address, model)}
    if not re.match(BASE_URL, values[address]):
        # The address itself is not repeated: what is wrong with it may be a password.
        raise SubmissionError(
            f"target.hydra_params.{address} is not http(s)://HOST[:PORT]/PATH without user, query or fragment"
        )
    try:
        return ModelSpec(name=name, base_url=values[address], model=values[model], api_key=key)
    except ValidationError as error:
        fields = {"baseUrl": address, "model": model}
        fault = error.errors(include_input=False)[0]
        raise SubmissionError(
            f"target.hydra_params.{fields.get(str(fault['loc'][0]), model)}: {fault['msg']}"
        ) from None


def _text(field: str, params: Mapping[str, Any]) -> str:
    value = _resolved(params.get(field), params)
    if not isinstance(value, str) or not value:
        raise SubmissionError(f"target.hydra_params.{field} is missing or no text; the route of a model needs it")
    if _TEMPLATE.match(value):
        raise SubmissionError(f"target.hydra_params.{field} refers to something outside hydra_params; write the value")
    return value


def _resolved(value: Any, params: Mapping[str, Any]) -> Any:
    """`${policy_base_url}` as the value of that setting."""
    for _ in params:
        match = _SETTING.match(value) if isinstance(value, str) else None
        if match is None or match[1] not in params:
            return value
        value = params[match[1]]
    return value


def _key_variable(name: str, params: Mapping[str, Any], env_secrets: Mapping[str, str]) -> str | None:
    """The variable of `env_secrets` that holds a model's key, None if the endpoint takes none."""
    field = gym_models.setting(name, "api_key")
    value = _resolved(params.get(field), params)
    if value in (None, "", NO_KEY):
        return None
    match = _VARIABLE.match(value) if isinstance(value, str) else None
    if match is None:
        raise SubmissionError(
            f"target.hydra_params.{field} holds a key in plain text, or something that can't be followed: put the key "
            f"into a Secret, name it in target.env_secrets ({field.upper()}: SECRET) and write "
            f"${{oc.env:{field.upper()}}} here; `{NO_KEY}` if the endpoint takes none"
        )
    if match[1] not in env_secrets:
        raise SubmissionError(
            f"target.hydra_params.{field} reads the variable {match[1]}, which target.env_secrets does not have; "
            f"add {match[1]}: SECRET there"
        )
    return match[1]


def _secret(variable: str | None, env_secrets: Mapping[str, str], secret_of: SecretOf) -> SecretValue | None:
    return secret_of(f"target.env_secrets.{variable}", env_secrets[variable]) if variable else None


def _refuse_credentials(params: Mapping[str, Any]) -> None:
    for path, name, value in _texts(params, "target.hydra_params"):
        if "${" not in value and is_credential(name, value):
            raise SubmissionError(
                f"{path} looks like a credential in plain text: put it into a Secret, name it in target.env_secrets "
                "(NAME: SECRET) and write ${oc.env:NAME} here"
            )


def _texts(value: Any, path: str, name: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            # A dotted key is a path, as in Gym's own overrides.
            yield from _texts(item, f"{path}.{key}", key.rpartition(".")[2])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]", name)
    elif isinstance(value, str):
        yield path, name, value


def _refuse_readers(params: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    """`variables` maps those that hold a model's key to its setting."""
    text = json.dumps(params)
    for variable, setting in variables.items():
        if re.search(rf"oc\.env:{variable}\b", text):
            raise SubmissionError(
                f"target.hydra_params reads the variable {variable}, which holds a model's key and is not in the "
                f"sandbox; write ${{{setting}}} there. A value that environment code may have needs a Secret and a "
                "variable of its own"
            )


def _refuse_model_secrets(env_secrets: Mapping[str, SecretValue], models: Mapping[str, ModelSpec]) -> None:
    for variable, secret in env_secrets.items():
        for model in models.values():
            if model.api_key and model.api_key.secret_key_ref.name == secret.secret_key_ref.name:
                raise SubmissionError(
                    f"target.env_secrets.{variable} names the Secret `{secret.secret_key_ref.name}` that holds the key "
                    f"of model `{model.name}`; environment code reads what env_secrets hold. Put other values into a "
                    "Secret of their own"
                )
