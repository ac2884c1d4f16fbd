"""AgentEvalJob: one evaluation of one agent in one Gym environment.

The models below are the only description of the resource: the CRD, its checks and its `kubectl
explain` texts are generated from them. Every field of the spec carries the place that named it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from .constants import API_VERSION, JOB_KIND, POLICY_MODEL, Isolation, Phase
from .fileset import CUSTOM_ENVIRONMENT_PAGE
from .origins import gym_config, kubernetes, ours, page, run_config
from .outcome import MAX_AGGREGATE_NAME, MAX_AGGREGATES
from .resource import (
    CONDITION_LIST,
    ApiModel,
    Condition,
    FileSetName,
    KeyRef,
    ObjectMeta,
    ObjectName,
    SecretValue,
    Timestamp,
    relative_path,
    rule,
    validated,
)
from .wire import Placement

PLACEMENT_PAGE = "evals/agent-eval/gym-runner.mdx"

WEEK_SECONDS = 7 * 24 * 3600

COMPONENT_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
MODEL_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"

VARIABLE_NAMES = rule(
    "self.all(name, name.matches('^[A-Za-z_][A-Za-z0-9_]{0,254}$'))",
    "names must be valid environment variables: letters, digits and '_', not starting with a digit",
)
RESERVED_VARIABLES = rule(
    "!self.exists(name, name.matches('^(NHX_.*|LD_.*|PATH|HOME|PYTHONPATH|PYTHONHOME)$'))",
    "NHX_*, LD_*, PATH, HOME, PYTHONPATH and PYTHONHOME are set by the operator and its images; choose other names",
)
NO_PLAIN_CREDENTIALS = rule(
    "!self.exists(name, name.matches('(?i)(^|_)(API_?KEY|ACCESS_KEY|PRIVATE_KEY|TOKEN|SECRET"
    "|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTHORIZATION)S?$'))",
    "a name that ends like a credential's belongs in envSecrets, with its value in a Secret",
)


class FileSetFile(ApiModel):
    """One file of a FileSet."""

    name: Annotated[ObjectName, kubernetes("LocalObjectReference.name")] = Field(
        description="Name of the FileSet, in the job's namespace. Its purpose must be `dataset`."
    )
    path: Annotated[str, ours("file inside a FileSet")] = Field(
        min_length=1,
        max_length=512,
        description="Path of the row file inside the FileSet, e.g. `rows.jsonl`.",
        json_schema_extra=relative_path("path"),
    )


class Dataset(ApiModel):
    """Where the rows come from: a JSON Lines file, one row per task."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "(has(self.bundled) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.fileSet) ? 1 : 0) == 1",
                "exactly one of bundled, configMap and fileSet must be set",
            )
        )
    )

    bundled: Annotated[str | None, ours("row files that ship inside NeMo Gym")] = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="A row file that ships with NeMo Gym, by its path there, e.g. "
        "`resources_servers/mcqa/data/example.jsonl`.",
        json_schema_extra=relative_path("bundled"),
    )
    config_map: Annotated[KeyRef | None, kubernetes("EnvVarSource.configMapKeyRef")] = Field(
        default=None, description="A key of a ConfigMap whose value is the row file."
    )
    file_set: Annotated[FileSetFile | None, ours("rows from a FileSet")] = Field(
        default=None, description="A file of a FileSet."
    )


class Tasks(ApiModel):
    """What is evaluated: each distinct row of the dataset is one task."""

    dataset: Annotated[Dataset, page(PLACEMENT_PAGE, "dataset")] = Field(
        description="Where the rows come from. Exactly one source."
    )
    limit: Annotated[int | None, ours("as the `limit` of the SDK's task loaders")] = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Use only the first so many distinct rows. Unset: all of them.",
    )


class Environment(ApiModel):
    """Gym components that are not built into the images."""

    file_set: Annotated[FileSetName, page(PLACEMENT_PAGE, "environment")] = Field(
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
    agent_ref_name: Annotated[str | None, page(PLACEMENT_PAGE, "agent_ref_name")] = Field(
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
        "`{a: {b: 1}}` sets `a.b`. For what no other field covers.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    env_vars: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], gym_config("env_vars")] = Field(
        default={},
        max_length=64,
        description="Environment variables for Gym, in plain text. Anything secret belongs in `envSecrets`.",
        json_schema_extra=validated(VARIABLE_NAMES, RESERVED_VARIABLES, NO_PLAIN_CREDENTIALS),
    )
    env_secrets: Annotated[dict[str, SecretValue], gym_config("env_secrets")] = Field(
        default={},
        max_length=64,
        description="Environment variables for Gym whose values stand in Secrets. They enter the "
        "sandbox: environment code can read them. Model keys belong in `models` instead, where "
        "the sandbox never sees them.",
        json_schema_extra=validated(VARIABLE_NAMES, RESERVED_VARIABLES),
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
    environment: Annotated[Environment | None, page(PLACEMENT_PAGE, "environment")] = Field(
        default=None,
        description="Gym components that are not built into the images. Runs sandboxed or not at "
        "all. Unset: `resourcesServer` is one of those in the images.",
    )


class Target(ApiModel):
    """What the tasks are put to. `gym` is the only kind."""

    gym: Annotated[GymSpec, page(PLACEMENT_PAGE, '"kind": "gym"')] = Field(
        description="An agent in a NeMo Gym environment."
    )


class ModelSpec(ApiModel):
    """One model endpoint. Gym reaches it through the evaluator, which alone holds its key."""

    # The rule stands here and not at `baseUrl` because a refusal there would repeat the address,
    # and with it the password that made it invalid.
    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "self.baseUrl.matches('^https?://[^/@?#]+(/[^?#]*)?$')",
                "baseUrl must be http(s)://HOST[:PORT]/PATH without user, query or fragment; a key belongs in apiKey",
                field=".baseUrl",
            )
        )
    )

    name: Annotated[str, ours("models by name")] = Field(
        min_length=1,
        max_length=32,
        pattern=MODEL_NAME,
        description="`policy` for the model under evaluation. Any other model NAME, a judge for "
        "instance, is offered to Gym's configuration as `NAME_base_url`, `NAME_api_key` and "
        "`NAME_model_name`, with `-` as `_`.",
    )
    base_url: Annotated[str, page(CUSTOM_ENVIRONMENT_PAGE, "policy_base_url")] = Field(
        min_length=1,
        max_length=2048,
        description="Root of an OpenAI-compatible API, usually ending in `/v1`.",
    )
    model: Annotated[str, page(CUSTOM_ENVIRONMENT_PAGE, "policy_model_name")] = Field(
        min_length=1,
        max_length=256,
        description="The model's name at that endpoint, e.g. `org/Name-3.2`.",
    )
    api_key: Annotated[SecretValue | None, page(CUSTOM_ENVIRONMENT_PAGE, "policy_api_key")] = Field(
        default=None,
        description="The endpoint's key. Unset: calls carry none.",
    )
    timeout_seconds: Annotated[float, ours("deadline of one call", default="openai.DEFAULT_TIMEOUT.read")] = Field(
        default=600.0,
        gt=0,
        le=WEEK_SECONDS,
        description="Longest time for one call, its retries included.",
    )
    max_retries: Annotated[int, ours("as the OpenAI client's", default="openai.DEFAULT_MAX_RETRIES")] = Field(
        default=2,
        ge=0,
        le=100,
        description="Further attempts after a call that failed for a passing reason.",
    )
    max_concurrent_calls: Annotated[int, ours("limit of the gateway", default="ours")] = Field(
        default=64,
        ge=1,
        le=4096,
        description="Calls to the endpoint at once; further ones wait.",
    )


class ClaimResults(ApiModel):
    """A PersistentVolumeClaim for the results."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "has(self.claimName) != has(self.size)",
                "set size for a new claim or claimName for an existing one, not both",
            ),
            rule(
                "!has(self.storageClassName) || has(self.size)",
                "storageClassName belongs to a new claim; with claimName leave it out",
                field=".storageClassName",
            ),
        )
    )

    size: Annotated[str | None, ours("requests.storage of the claim")] = Field(
        default=None,
        max_length=32,
        pattern=QUANTITY,
        description="Size of a new claim, e.g. `1Gi`. It belongs to the job and goes with it.",
    )
    storage_class_name: Annotated[str | None, kubernetes("PersistentVolumeClaimSpec.storageClassName")] = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="StorageClass of a new claim. Unset: the cluster's default.",
    )
    claim_name: Annotated[str | None, kubernetes("PersistentVolumeClaimVolumeSource.claimName")] = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="An existing claim of the job's namespace, used by this job alone. It stays "
        "when the job is deleted.",
    )


class EmptyDirResults(ApiModel):
    """Results live as long as the evaluator pod does."""


class Results(ApiModel):
    """Where the result bundle goes."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "!(has(self.persistentVolumeClaim) && has(self.emptyDir))",
                "set one of persistentVolumeClaim and emptyDir",
            )
        )
    )

    persistent_volume_claim: Annotated[ClaimResults | None, kubernetes("Volume.persistentVolumeClaim")] = Field(
        default=None,
        description="Keep the bundle on a claim. Unset: in an emptyDir.",
    )
    empty_dir: Annotated[EmptyDirResults | None, kubernetes("Volume.emptyDir")] = Field(
        default=None,
        description="Keep the bundle in the evaluator pod only. The aggregates stay in the status.",
    )


class JobSpec(ApiModel):
    """What to evaluate, against what, and where the result goes."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "self == oldSelf",
                "the spec of a job cannot change; delete the job and apply it again, or apply it under another name",
            )
        )
    )

    tasks: Annotated[Tasks, page(CUSTOM_ENVIRONMENT_PAGE, "tasks")] = Field(description="What is evaluated.")
    target: Annotated[Target, page(CUSTOM_ENVIRONMENT_PAGE, "target")] = Field(description="What the tasks are put to.")
    models: Annotated[list[ModelSpec], ours("model endpoints of a job")] = Field(
        min_length=1,
        max_length=16,
        description="Model endpoints by name. `policy` is required; a judge may stand beside it.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            **validated(
                rule(
                    f"self.exists(m, m.name == '{POLICY_MODEL}')",
                    "one entry must be named 'policy': the model under evaluation",
                )
            ),
        },
    )
    results: Annotated[Results, ours("where the bundle goes")] = Field(
        default=Results(empty_dir=EmptyDirResults()),
        description="Where the result bundle goes.",
    )
    min_coverage: Annotated[float, ours("share of rollouts that must have a reward")] = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Smallest share of rollouts with a reward for the job to succeed. Below 1.0 a "
        "job that lacks some is Complete and Degraded.",
    )
    parallelism: Annotated[int, run_config("parallelism")] = Field(
        default=4, ge=1, le=256, description="Tasks scored at once. Does not speed up collection."
    )
    labels: Annotated[dict[str, Annotated[str, Field(max_length=256)]], run_config("labels")] = Field(
        default={},
        max_length=32,
        description="Tags recorded in the result bundle, e.g. `benchmark: mcqa`. They are not "
        "Kubernetes labels and may hold any text.",
    )

    @property
    def policy(self) -> ModelSpec:
        """The model under evaluation."""
        return next(model for model in self.models if model.name == POLICY_MODEL)


class JobProgress(ApiModel):
    """How far the rollouts are."""

    done: int = Field(default=0, ge=0, description="Rollouts with a reward.")
    failed: int = Field(default=0, ge=0, description="Rollouts that ended without one.")
    total: int = Field(default=0, ge=0, description="Rollouts asked for: tasks x numRepeats.")
    mean_reward: float | None = Field(default=None, description="Mean reward of the rollouts done so far, unscaled.")
    summary: str = Field(default="", max_length=64, description="Finished of total, e.g. `6/10`, failed ones included.")


class JobHosts(ApiModel):
    """Gym hosts of a sandboxed job."""

    ready: int = Field(default=0, ge=0, description="Hosts that take rollouts.")
    desired: int = Field(default=0, ge=0, description="Hosts the job asked for.")
    summary: str = Field(default="", max_length=64, description="Ready of desired, e.g. `1/1`.")


class JobAggregate(ApiModel):
    """One number about the whole run, in the units of whoever computed it."""

    name: str = Field(max_length=MAX_AGGREGATE_NAME, description="E.g. `gym_reward.reward`.")
    value: float | None = Field(default=None, description="The headline value.")
    kind: str = Field(max_length=64, description="`scalar` or `range`, as the SDK says.")
    unit: str = Field(
        max_length=64,
        description="`reward` for the SDK's own scores (0 to 1), `gym` for what Gym computed, in Gym's own units.",
    )
    count: int | None = Field(default=None, description="Values that went into it.")
    mean: float | None = Field(default=None, description="Mean of a range.")
    min: float | None = Field(default=None, description="Smallest value of a range.")
    max: float | None = Field(default=None, description="Largest value of a range.")
    median: float | None = Field(default=None, description="Median of a range.")
    std_dev: float | None = Field(default=None, description="Standard deviation, divided by n.")
    sample_std_dev: float | None = Field(default=None, description="Standard deviation, divided by n - 1.")


class JobModelUsage(ApiModel):
    """What the gateway counted for one model."""

    calls: int = Field(default=0, ge=0, description="Calls answered.")
    failed_calls: int = Field(default=0, ge=0, description="Calls refused or failed for good.")
    input_tokens: int = Field(default=0, ge=0, description="Tokens sent, as the endpoint counts.")
    output_tokens: int = Field(default=0, ge=0, description="Tokens received.")
    total_tokens: int = Field(default=0, ge=0, description="Both together.")
    unmetered_calls: int = Field(
        default=0, ge=0, description="Answered calls that stated no tokens: with any, the counts are lower bounds."
    )


class JobResults(ApiModel):
    """Where the result bundle is."""

    location: str = Field(
        default="",
        max_length=320,
        description="`persistentVolumeClaim/NAME`, or `emptyDir` of the evaluator pod.",
    )
    path: str = Field(default="", max_length=512, description="Directory of the bundle in it, e.g. `attempt-1`.")


class JobRan(ApiModel):
    """What really ran, so that a result can be repeated."""

    images: dict[str, str] | None = Field(default=None, description="Image digest by role, as the kubelet reported it.")
    versions: dict[str, str] | None = Field(default=None, description="Version of each package that shapes the result.")
    environment_digest: str | None = Field(
        default=None, max_length=128, description="Digest of the staged environment."
    )
    host_kernel: str | None = Field(default=None, max_length=512, description="The kernel that the Gym host saw.")


class JobStatus(ApiModel):
    """What is known about the job. Written by the operator alone."""

    phase: Phase | None = Field(
        default=None,
        description="One word for people, computed from the conditions. Programs read those.",
    )
    observed_generation: int | None = Field(
        default=None, ge=0, description="`metadata.generation` that this status speaks of."
    )
    placement: Placement | None = Field(
        default=None,
        description="Where Gym runs, decided by the operator when it accepted the job: in a sandbox "
        "of its own or beside the evaluator.",
    )
    isolation: Isolation | None = Field(
        default=None,
        description="What fences a sandboxed job in: a kernel of its own, or a container only.",
    )
    runtime_class_name: str | None = Field(
        default=None, max_length=253, description="RuntimeClass of the sandbox, if it has one."
    )
    model: str | None = Field(default=None, max_length=256, description="Model name of the policy, for the table.")
    attempt: int | None = Field(default=None, ge=1, description="Number of the current attempt.")
    start_time: Timestamp | None = Field(default=None, description="When the job was accepted for the first time.")
    completion_time: Timestamp | None = Field(default=None, description="When the job succeeded or failed.")
    progress: JobProgress | None = Field(default=None, description="How far the rollouts are.")
    reward: str | None = Field(
        default=None,
        max_length=32,
        description="`gym_reward.reward` of a finished job, the mean so far of a running one; two "
        "decimals, for the table. Exact values are in `aggregates` and `progress`.",
    )
    hosts: JobHosts | None = Field(default=None, description="Gym hosts of a sandboxed job.")
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=16,
        description="Accepted, Staged, SandboxReady, Running, Complete, Degraded, Failed.",
        json_schema_extra=CONDITION_LIST,
    )
    aggregates: list[JobAggregate] | None = Field(
        default=None,
        max_length=MAX_AGGREGATES,
        description="The run's numbers, at most 64; all of them are in the bundle.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    aggregates_dropped: int | None = Field(default=None, ge=0, description="Aggregates that are only in the bundle.")
    coverage: float | None = Field(
        default=None, ge=0, le=1, description="Rollouts with a reward, divided by those asked for."
    )
    usage: dict[str, JobModelUsage] | None = Field(
        default=None, description="Calls and tokens by the model's name in the spec."
    )
    results: JobResults | None = Field(default=None, description="Where the result bundle is.")
    ran: JobRan | None = Field(default=None, description="Images and packages that ran.")


class AgentEvalJob(ApiModel):
    """One evaluation of an agent in a NeMo Gym environment, run on this cluster."""

    api_version: str = API_VERSION
    kind: str = JOB_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: JobSpec = Field(description="What to evaluate. Cannot change once the job exists.")
    status: JobStatus = Field(default_factory=JobStatus, description="What is known about the job.")
