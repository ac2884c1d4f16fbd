"""From a job back to the spec file that it was made of: what shows that nothing was lost on the way.

It goes by the fields of the target, not by the tables of the conversion, so that a field which those forget is missed.
"""

from __future__ import annotations

from typing import Any

from nhx_gym_operator.api import gym_models
from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.api.resource import SecretValue
from nhx_gym_operator.submission.convert import TASKSET_KEY
from nhx_gym_operator.submission.references import SECRET_KEY
from nhx_gym_operator.submission.routes import NO_KEY
from nhx_gym_operator.submission.target import AgentEvalInputSpec, GymRunnerTarget, GymSource

_NOT_ALIKE = {"kind", "source", "environment", "hydra_params", "env_secrets"}


def spec_of(job: AgentEvalJob) -> AgentEvalInputSpec:
    """The models' routes are in `hydra_params` again, and their keys in variables that the file may have called
    otherwise."""
    namespace = f"{job.metadata.namespace}/" if job.metadata.namespace else ""
    gym = job.spec.target.gym
    settings: dict[str, Any] = {}
    variables = {name: _reference(namespace, secret) for name, secret in gym.env_secrets.items()}
    for model in job.spec.models:
        key = NO_KEY
        if model.api_key is not None:
            variable = f"KEY_OF_{model.name.replace('-', '_').upper()}"
            variables[variable] = _reference(namespace, model.api_key)
            key = f"${{oc.env:{variable}}}"
        values = {"base_url": model.base_url, "api_key": key, "model_name": model.model}
        settings |= {gym_models.setting(model.name, what): value for what, value in values.items()}
    taskset = job.spec.tasks.taskset
    assert taskset and taskset.config_map and taskset.config_map.key == TASKSET_KEY
    alike = GymRunnerTarget.model_fields.keys() - _NOT_ALIKE
    return AgentEvalInputSpec(
        tasks=f"{namespace}{taskset.config_map.name}",
        target=GymRunnerTarget(
            source=GymSource(component=gym.agent, config=gym.agent_config, instance=gym.agent_ref_name),
            environment=f"{namespace}{gym.environment.file_set.name}" if gym.environment else None,
            hydra_params=settings | gym.hydra_params,
            env_secrets=variables,
            **{field: getattr(gym, f"{field[:-2]}_seconds" if field.endswith("_s") else field) for field in alike},
        ),
        max_concurrent_tasks=job.spec.parallelism,
        fail_fast=job.spec.fail_fast,
        labels=dict(job.spec.labels),
    )


def _reference(namespace: str, secret: SecretValue) -> str:
    assert secret.secret_key_ref.key == SECRET_KEY
    return f"{namespace}{secret.secret_key_ref.name}"
