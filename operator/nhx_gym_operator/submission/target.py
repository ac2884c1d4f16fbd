"""What a submission is described with, by the names of the documentation pages.

`GymRunnerTarget`, `GymPlacement` and the shape of a spec file stand in evals/agent-eval/gym-runner.mdx and
gym-custom-environment.mdx of the nemo-helix-plugin wheel and in no package. Defaults are those of `GymSpec`, which are
those of the installed `GymRuntimeConfig`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, model_validator

from ..api.job import JobSpec
from ..api.target import GymSpec

REFERENCE = r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)?$"
"""`name` or `workspace/name`: the pattern of the SDK's `SecretRef`. The workspace is the job's namespace."""
_FLAT = {"agent": "component", "agent_config": "config", "agent_ref_name": "instance"}
"""A target may name its agent flat, as `GymRuntimeConfig` does, or as one field `source`."""
_NO_REGISTRY = (
    "names an agent registered on the platform, and there is no such registry here; name the agent's `component` and "
    "`config` instead"
)


def _root(value: Any) -> Any:
    """References come as text or as the SDK's one-field models, whose text is `root`."""
    return getattr(value, "root", value)


class TasksetRef(RootModel[Annotated[str, Field(pattern=REFERENCE)]]):
    """A stored taskset, `name` or `namespace/name`: the ConfigMap that holds it."""


class FilesetRef(RootModel[Annotated[str, Field(pattern=REFERENCE)]]):
    """A FileSet, `name` or `namespace/name`."""


Reference = Annotated[str, BeforeValidator(_root), Field(pattern=REFERENCE)]


class _Described(BaseModel):
    # Values may hold credentials, so no message repeats them.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class GymPlacement(_Described):
    """What the deployment decides about a runner that is submitted, passed beside it."""

    environment: Reference | None = Field(
        default=None,
        description="FileSet with Gym components that are not in the images. Runs sandboxed or not at all.",
    )
    agent_ref_name: str | None = Field(
        default=None,
        description="Agent instance that a sandboxed host routes rollouts to, if not the component's name.",
    )


class GymSource(_Described):
    """The agent of a target: its component, its configuration, and the instance that the environment registers."""

    component: str
    config: str | None = None
    instance: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_registered_agent(cls, data: Any) -> Any:
        if isinstance(data, dict) and "agent" in data:
            raise ValueError(f"`agent` {_NO_REGISTRY}")
        return data


def _default(name: str) -> Any:
    return GymSpec.model_fields[name].get_default()


class GymRunnerTarget(_Described):
    """A `GymAgentTaskRunner` and its `GymPlacement`, as a spec file holds them."""

    kind: Literal["gym"] = "gym"
    source: GymSource
    environment: Reference | None = None
    resources_server: str
    model_type: str = _default("model_type")
    bind_resources_server: bool = _default("bind_resources_server")
    hydra_params: dict[str, Any] = Field(default_factory=dict)
    env_vars: dict[str, str] = Field(default_factory=dict)
    env_secrets: dict[str, Reference] = Field(default_factory=dict)
    num_repeats: int = _default("num_repeats")
    concurrency: int = _default("concurrency")
    startup_timeout_s: float = _default("startup_timeout_seconds")
    collection_timeout_s: float | None = _default("collection_timeout_seconds")
    shutdown_grace_s: float = _default("shutdown_grace_seconds")
    reward_key: str = _default("reward_key")

    @model_validator(mode="before")
    @classmethod
    def _flat_agent_is_a_source(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("kind", "gym") != "gym":
            raise ValueError(f"`kind` is {data['kind']!r}; only `gym` runs here")
        if "resolved_config" in data:
            raise ValueError("`resolved_config` is what a platform writes there; leave it out")
        flat = {name: data[name] for name in _FLAT if name in data}
        if not flat:
            return data
        if "source" in data:
            raise ValueError(f"`source` and `{next(iter(flat))}` both name the agent; keep `source` alone")
        if "agent" not in flat:
            raise ValueError("`agent` is missing, or a `source` with its `component`")
        rest = {name: value for name, value in data.items() if name not in _FLAT}
        return {**rest, "source": {_FLAT[name]: value for name, value in flat.items()}}

    @model_validator(mode="after")
    def _no_variable_twice(self) -> Self:
        twice = sorted(set(self.env_vars) & set(self.env_secrets))
        if twice:
            raise ValueError(f"{', '.join(twice)} in both env_vars and env_secrets; keep each in one of them")
        return self


class AgentEvalInputSpec(_Described):
    """A spec file of the agent-evaluate shape, such as `gym_agent_eval.json`.

    The model's name is that of evals/agent-eval/fabric-runner.mdx. `max_concurrent_tasks` is the job's `parallelism`:
    tasks scored at once.
    """

    tasks: Reference
    target: GymRunnerTarget
    max_concurrent_tasks: int = JobSpec.model_fields["parallelism"].get_default()
    fail_fast: bool = JobSpec.model_fields["fail_fast"].get_default()
    labels: dict[str, str] = Field(default_factory=dict)
