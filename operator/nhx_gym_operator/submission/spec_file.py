"""A spec file, `gym_agent_eval.json` of the agent-evaluate shape, from the value that stands in it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from .errors import SubmissionError
from .plain import plain
from .target import AgentEvalInputSpec


def is_spec_file(value: Any) -> bool:
    """Whether a file's value is a spec file and no Kubernetes manifest: those have `apiVersion` and `kind`."""
    return isinstance(value, dict) and "apiVersion" not in value and "target" in value


def parse_spec(value: Any, label: str) -> AgentEvalInputSpec:
    """`label` is how messages name the file. Raises SubmissionError that names it and the field."""
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
