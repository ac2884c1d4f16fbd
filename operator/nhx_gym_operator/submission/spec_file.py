"""Reading a spec file: `gym_agent_eval.json` of the agent-evaluate shape, as JSON or as YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from .errors import SubmissionError
from .plain import plain
from .target import AgentEvalInputSpec


def read_spec_file(path: Path) -> AgentEvalInputSpec:
    """Raises SubmissionError naming file and field. A file of another shape is for `is_spec_file` to tell."""
    return parse_spec(load(path), str(path))


def load(path: Path) -> Any:
    """The file's value, JSON if it ends so, else YAML."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SubmissionError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SubmissionError(f"{path} is not UTF-8; save it as UTF-8") from None
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise SubmissionError(f"{path} is not {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from None


def is_spec_file(value: Any) -> bool:
    """Whether a file's value is a spec file and no Kubernetes manifest: those have `apiVersion` and `kind`."""
    return isinstance(value, dict) and "apiVersion" not in value and "target" in value


def parse_spec(value: Any, label: str) -> AgentEvalInputSpec:
    """`label` is how messages name the file."""
    try:
        if not isinstance(value, dict):
            raise ValueError("not an object with `tasks` and `target`")
        fields = {name: plain(value[name], str(name)) for name in value}
        return AgentEvalInputSpec.model_validate(fields)
    except ValidationError as error:
        raise SubmissionError(f"{label}: {faults_of(error)}") from None
    except ValueError as error:
        raise SubmissionError(f"{label}: {error}") from None


def faults_of(error: ValidationError) -> str:
    """Each fault with its field, without the value that stands there."""
    faults = []
    for fault in error.errors(include_input=False, include_url=False, include_context=False):
        field = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        faults.append(f"{field}: {message}" if field else message)
    return "; ".join(faults)
