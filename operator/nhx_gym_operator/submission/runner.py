"""A live runner as the target of a job: the configuration that was tried locally is the one that runs."""

from __future__ import annotations

from typing import Any

from nhx_evals_sdk.agent_eval.runtimes.gym import GymAgentTaskRunner
from pydantic import ValidationError

from .errors import UnsubmittableRunnerError
from .plain import plain
from .spec_file import faults_of
from .target import GymPlacement, GymRunnerTarget

_AGENT = {"agent": "component", "agent_config": "config"}


def target_of_runner(runner: Any, placement: GymPlacement | None = None) -> GymRunnerTarget:
    """Of `env_secrets` only the references are taken; nothing looks up their values.

    Raises UnsubmittableRunnerError naming the runner and its field: a runner of another kind, one whose class overrides
    something, a value with no JSON form.
    """
    name = type(runner).__name__
    if type(runner) is not GymAgentTaskRunner:
        raise UnsubmittableRunnerError(f"{name} can't be submitted: {_why_not(runner)}")
    config = runner.config
    source: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for field in type(config).model_fields:
        value = getattr(config, field)
        if field == "env_secrets":
            value = {variable: reference.root for variable, reference in value.items()}
        try:
            value = plain(value, f"{name}.config.{field}")
        except ValueError as error:
            raise UnsubmittableRunnerError(str(error)) from None
        if field in _AGENT:
            source[_AGENT[field]] = value
        else:
            fields[field] = value
    placement = placement or GymPlacement()
    try:
        return GymRunnerTarget.model_validate(
            {**fields, "source": {**source, "instance": placement.agent_ref_name}, "environment": placement.environment}
        )
    except ValidationError as error:
        raise UnsubmittableRunnerError(f"{name}.config: {faults_of(error)}") from None


def _why_not(runner: Any) -> str:
    if isinstance(runner, GymAgentTaskRunner):
        return (
            "a job can't carry what a subclass overrides. Submit GymAgentTaskRunner(config=runner.config) if the "
            "configuration is all of it"
        )
    return "only a GymAgentTaskRunner runs here, and only one takes a placement"
