"""What hydraParams may not hold: what no pod can carry, what means another thing in each placement, what is a model's,
a port that is taken, and what is secret.

A sandboxed Gym is given its configuration as JSON. A colocated one is started by its own command line, as the SDK does
it, and so by Hydra's grammar, which has no words for some keys and texts:
https://hydra.cc/docs/advanced/override_grammar/basic/ (`key` and `quotedValue` there).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.parse import urlsplit

from ...api import credentials, gym_models, gym_ports
from ...api.constants import Placement
from ...api.gym_config import nested
from ...api.job import JobSpec
from ...api.models import ModelSpec, model_field
from ...api.target import GymSpec

FIELD = "spec.target.gym.hydraParams"
MAX_BYTES = 64 * 1024
"""As JSON. The plan that carries them is one environment string, of which Linux takes 128 KiB."""
MAX_DEPTH = 64
"""Serialisers stop at some hundred levels."""
POLICY_SERVER = "policy_model"
"""Gym's instance name of the policy's model server, in the configuration of every `modelType`."""
MODEL_SERVERS = "responses_api_models"
_BASE_URL, _MODEL = re.compile(r"(.*_)?base_url"), re.compile(r"(openai_)?model|.*_model_name")
_NAME = r"[A-Za-z_$][A-Za-z0-9_$-]*"
_SPOKEN_PATH = re.compile(rf"{_NAME}(\.({_NAME}|0|[1-9][0-9]*))*")
"""A dotted path that Hydra's command line reads as it stands."""
_SPOKEN_IN_A_LIST = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""A key of a mapping inside a list, as nhx_evals_sdk's `hydra_scalar` lets it pass; the words below are no text there.
"""
_TYPED_WORDS = frozenset({"true", "false", "null", "inf", "nan"})
_UNSPOKEN_TEXT = re.compile(r"\\('|\Z)")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Path = tuple[str, ...]


def refusal(spec: JobSpec, placement: Placement) -> str | None:
    """Why these can never run in that placement, naming the place and what to use instead; never a value."""
    params = spec.target.gym.hydra_params
    if _is_deeper_than(params, MAX_DEPTH):
        return f"{FIELD} are nested more than {MAX_DEPTH} levels deep; set deeper values in an environment"
    size = len(json.dumps(params).encode())
    if size > MAX_BYTES:
        return (
            f"{FIELD} are {size} bytes as JSON, at most {MAX_BYTES} are taken; "
            "put large values into an environment's own configuration"
        )
    spoken = _unspoken(params) if placement is Placement.COLOCATED else None
    return (
        _empty_name(params)
        or spoken
        or _reserved(spec)
        or _other_model_type(spec)
        or _clashing(params, placement)
        or next(filter(None, (_refused(spec.models, *leaf) for leaf in _leaves(params))), None)
    )


def _empty_name(params: dict[str, Any]) -> str | None:
    path = next((path for path in _paths(params) if "" in path), None)
    return None if path is None else f"{FIELD}: the key {'.'.join(path)!r} names nothing between two dots or at its end"


def _unspoken(value: Any, path: Path = (), *, in_list: bool = False) -> str | None:
    """What Gym's command line cannot be told."""
    where = f"{FIELD}.{'.'.join(path)}" if path else FIELD
    sandbox = "; a sandboxed job takes it, and so does an environment's own configuration"
    if isinstance(value, list):
        return next(filter(None, (_unspoken(item, path, in_list=True) for item in value)), None)
    if isinstance(value, str) and _UNSPOKEN_TEXT.search(value):
        return f"{where} has a backslash before a ' or at its end, which Gym's command line cannot be told{sandbox}"
    if not isinstance(value, dict):
        return None
    for key, inner in value.items():
        below = (*path, key)
        spoken = _is_spoken_in_a_list(key) if in_list else _SPOKEN_PATH.fullmatch(".".join(below))
        if not spoken:
            return (
                f"{where}: Gym's command line has no words for the key {key!r}: letters, digits, '_' and '-' make a "
                f"key, and a letter or '_' begins it{sandbox}"
            )
        found = _unspoken(inner, below, in_list=in_list)
        if found:
            return found
    return None


def _is_spoken_in_a_list(key: str) -> bool:
    return bool(_SPOKEN_IN_A_LIST.fullmatch(key)) and key.casefold() not in _TYPED_WORDS


def _reserved(spec: JobSpec) -> str | None:
    """The settings by which Gym is told of a model: the job's models decide them."""
    for model, (what, field) in product(spec.models, gym_models.FIELDS.items()):
        param = gym_models.setting(model.name, what)
        if param in spec.target.gym.hydra_params:
            return (
                f"{FIELD}.{param} is set by the operator; use models: "
                f"put the value into {model_field(model.name)}.{field}"
            )
    return None


def _other_model_type(spec: JobSpec) -> str | None:
    """A second model server under the policy's name: Gym ends at it with a dump (`AlmostServerError`)."""
    chosen = spec.target.gym.model_type
    for path in _paths(spec.target.gym.hydra_params):
        if path[:2] == (POLICY_SERVER, MODEL_SERVERS) and len(path) > 2 and path[2] != chosen:
            default = " (the default)" if chosen == GymSpec.model_fields["model_type"].default else ""
            return (
                f"{FIELD} sets {'.'.join(path[:3])}, but modelType is {chosen}{default}: set "
                f"spec.target.gym.modelType: {path[2]}, or write {chosen} here"
            )
    return None


def _clashing(params: dict[str, Any], placement: Placement) -> str | None:
    why = gym_ports.clash(nested(params), placement)
    return why and f"{FIELD}.{why}"


def _refused(models: list[ModelSpec], path: Path, value: Any) -> str | None:
    """Why one value may not stand there. `${...}` refers to what is set elsewhere, and may."""
    if not isinstance(value, str) or "${" in value:
        return None
    name, place = path[-1], f"{FIELD}.{'.'.join(path)}"
    is_models = len(path) == 1 or MODEL_SERVERS in path
    if is_models and _BASE_URL.fullmatch(name) and _is_remote(value):
        return (
            f"{place} is the address of a model; Gym reaches models only through the evaluator. Use models: declare it "
            "in spec.models with a name of its own, e.g. judge, and write ${judge_base_url} here"
        )
    if is_models and _MODEL.fullmatch(name) and value not in {model.model for model in models}:
        return (
            f"{place} asks for a model that this job does not declare. Use models: declare it in spec.models with a "
            "name of its own, e.g. judge, and write ${judge_model_name} here"
        )
    if credentials.is_credential(name, value):
        return (
            f"{place} looks like a credential, which anybody who may read the job could read. For a model's key use "
            "models: spec.models[].apiKey names its Secret, and ${NAME_api_key} stands for it here. Put any other in a "
            "Secret, name that in spec.target.gym.envSecrets.NAME and write ${oc.env:NAME} here"
        )
    return None


def _is_remote(url: str) -> bool:
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return True
    return host not in _LOOPBACK


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every scalar with its path. Dotted keys are paths, as in Gym's overrides; a list adds nothing to a path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, *str(key).split(".")))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path, value


def _paths(params: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    """Every key's path, as far as it is one of names."""
    for key, inner in params.items():
        here = (*path, *key.split("."))
        yield here
        if isinstance(inner, dict):
            yield from _paths(inner, here)


def _is_deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)
