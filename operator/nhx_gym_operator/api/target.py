"""What the tasks are put to: an agent in a NeMo Gym environment."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from . import credentials
from .origins import GYM_RUNNER_PAGE, gym_config, page
from .resource import WEEK_SECONDS, ApiModel, FileSetName, SecretValue, relative_path, rule, validated

COMPONENT_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"

VARIABLE_NAMES = rule(
    "self.all(name, name.matches('^[A-Za-z_][A-Za-z0-9_]{0,254}$'))",
    "names must be valid environment variables: letters, digits and '_', not starting with a digit",
)
RESERVED_VARIABLES = rule(
    "!self.exists(name, name.matches('^(NHX_.*|LD_.*|PATH|HOME|PYTHONPATH|PYTHONHOME)$'))",
    "NHX_*, LD_*, PATH, HOME, PYTHONPATH and PYTHONHOME are set by the operator and its images; choose other names",
)
PROXY_VARIABLE = r"(?i)^(https?|wss?|ftp|all|no)_proxy$"
"""What Python's urllib, requests, aiohttp, httpx and curl take a way out from, in any case."""
NO_PROXIES = (
    "variables for proxies are reserved, in any case: which hosts a job reaches is its administrator's to say; declare "
    "models in spec.models"
)
NO_PROXY_VARIABLES = rule(f"!self.exists(name, name.matches(r'{PROXY_VARIABLE}'))", NO_PROXIES)
NO_CREDENTIAL_NAMES = rule(
    f"!self.exists(name, name.matches(r'{credentials.NAME}') && !name.matches(r'{credentials.SPECIAL_TOKEN}') && "
    f"!(name.matches(r'{credentials.COUNT_NAME}') && self[name].matches(r'{credentials.COUNT}')))",
    "a name that ends like a credential's belongs in envSecrets, with its value in a Secret",
)
NO_CREDENTIAL_VALUES = rule(
    f"!self.exists(name, self[name].matches(r'{credentials.VALUE}'))",
    "a value that looks like a key, token or password belongs in envSecrets, with its value in a Secret; "
    "the key of a model belongs in spec.models[].apiKey",
)


class Environment(ApiModel):
    """Gym components that are not built into the images."""

    file_set: Annotated[FileSetName, page(GYM_RUNNER_PAGE, "environment")] = Field(
        description="A FileSet of purpose `environment` with `nemo-environment.yaml` at its root."
    )


class GymSpec(ApiModel):
    """A NeMo Gym evaluation: which agent acts in which environment, and how."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "has(self.agentConfig) || has(self.environment)",
                "agentConfig is required unless an environment declares the agent",
                field=".agentConfig",
                reason="FieldValueRequired",
            ),
            rule(
                "!has(self.envVars) || !has(self.envSecrets) || !self.envVars.exists(name, name in self.envSecrets)",
                "a variable stands in both envVars and envSecrets; keep it in one of them",
                field=".envVars",
            ),
        )
    )

    agent: Annotated[str, gym_config("agent")] = Field(
        min_length=1,
        max_length=128,
        pattern=COMPONENT_NAME,
        description="Agent component that collects the rollouts, e.g. `simple_agent`.",
    )
    agent_config: Annotated[str | None, gym_config("agent_config")] = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="The agent's configuration file, relative to NeMo Gym's root, e.g. "
        "`responses_api_agents/simple_agent/configs/simple_agent.yaml`. Unset: the environment "
        "declares the agent.",
        json_schema_extra=relative_path("agentConfig"),
    )
    agent_ref_name: Annotated[str | None, page(GYM_RUNNER_PAGE, "agent_ref_name")] = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=COMPONENT_NAME,
        description="Name under which the environment registers its agent instance, where it is not "
        "the component's own, e.g. `mcqa_simple_agent`. Sandboxed rollouts are routed by it. "
        "Unset: the value of `agent`.",
    )
    resources_server: Annotated[str, gym_config("resources_server")] = Field(
        min_length=1,
        max_length=128,
        pattern=COMPONENT_NAME,
        description="Resources server that sets the tasks and scores the answers, e.g. `mcqa`.",
    )
    model_type: Annotated[str, gym_config("model_type")] = Field(
        default="inference_provider",
        min_length=1,
        max_length=128,
        pattern=COMPONENT_NAME,
        description="How Gym speaks to the policy model. `inference_provider` and `vllm_model` use "
        "chat completions, `openai_model` the Responses API.",
    )
    bind_resources_server: Annotated[bool, gym_config("bind_resources_server")] = Field(
        default=True,
        description="Point the agent's `resources_server.name` at `resourcesServer`. Turn it off "
        "for an agent whose configuration already names its resources server.",
    )
    hydra_params: Annotated[dict[str, Any], gym_config("hydra_params")] = Field(
        default={},
        max_length=256,
        description="Merged into Gym's own configuration, last. Nested as there: "
        "`{a: {b: 1}}` sets `a.b`. For what no other field covers: models stand in `models`, secrets in "
        "`envSecrets`, and `${NAME_base_url}` or `${oc.env:NAME}` refer to them here.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    env_vars: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], gym_config("env_vars")] = Field(
        default={},
        max_length=64,
        description="Environment variables for Gym, in plain text. Anything secret belongs in `envSecrets`.",
        json_schema_extra=validated(
            VARIABLE_NAMES, RESERVED_VARIABLES, NO_PROXY_VARIABLES, NO_CREDENTIAL_NAMES, NO_CREDENTIAL_VALUES
        ),
    )
    env_secrets: Annotated[dict[str, SecretValue], gym_config("env_secrets")] = Field(
        default={},
        max_length=64,
        description="Environment variables for Gym whose values stand in Secrets. They enter the "
        "sandbox: environment code can read them. Model keys belong in `models` instead, where "
        "the sandbox never sees them: a Secret that a model names is refused here.",
        json_schema_extra=validated(VARIABLE_NAMES, RESERVED_VARIABLES, NO_PROXY_VARIABLES),
    )
    num_repeats: Annotated[int, gym_config("num_repeats")] = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Rollouts per row; each becomes one trial.",
    )
    concurrency: Annotated[int, gym_config("concurrency")] = Field(
        default=4,
        ge=1,
        le=1024,
        description="Rollouts collected at once. Fit it to what the model endpoint stands.",
    )
    startup_timeout_seconds: Annotated[float, gym_config("startup_timeout_s")] = Field(
        default=240.0,
        gt=0,
        le=WEEK_SECONDS,
        description="Longest wait for Gym to be ready, from its launcher's start. Waiting for a "
        "node or an image is not counted.",
    )
    collection_timeout_seconds: Annotated[float | None, gym_config("collection_timeout_s")] = Field(
        default=None,
        gt=0,
        le=WEEK_SECONDS,
        description="Longest time for all rollouts together. Unset or null: no limit.",
        json_schema_extra={"nullable": True},
    )
    shutdown_grace_seconds: Annotated[float, gym_config("shutdown_grace_s")] = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Time Gym's processes have to end by themselves before they are killed.",
    )
    reward_key: Annotated[str, gym_config("reward_key")] = Field(
        default="reward",
        min_length=1,
        max_length=256,
        description="Key of a rollout record that holds its reward.",
    )
    environment: Annotated[Environment | None, page(GYM_RUNNER_PAGE, "environment")] = Field(
        default=None,
        description="Gym components that are not built into the images. Runs sandboxed or not at "
        "all. Unset: `resourcesServer` is one of those in the images.",
    )


class Target(ApiModel):
    """What the tasks are put to. `gym` is the only kind."""

    gym: Annotated[GymSpec, page(GYM_RUNNER_PAGE, '"kind": "gym"')] = Field(
        description="An agent in a NeMo Gym environment."
    )
