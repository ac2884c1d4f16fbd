"""What the operator tells a pod: each plan is JSON in one variable of the pod's environment."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..constants import Placement
from ..failure_policy import FailureAction
from .message import Message
from .reports import FailureClass

EVALUATOR_PLAN_ENV = "NHX_EVALUATOR_PLAN"
HOST_PLAN_ENV = "NHX_HOST_PLAN"
FETCH_PLAN_ENV = "NHX_FETCH_PLAN"
STAGE_PLAN_ENV = "NHX_STAGE_PLAN"
OUTCOME_PLAN_ENV = "NHX_OUTCOME_PLAN"
CANARY_PLAN_ENV = "NHX_CANARY_PLAN"
"""Environment variables that carry the plans below as JSON."""
NODE_ADDRESSES_ENV = "NHX_NODE_ADDRESSES"
"""The addresses of a pod's node, with commas between them (`status.hostIPs`): only the pod can know them."""
NODE_HOST = "node"
"""Stands in a plan for each of those addresses."""


class ModelRoute(Message):
    """One model of the job, as the gateway reaches it."""

    name: str
    base_url: str
    model: str
    has_api_key: bool = False
    has_certificates: bool = False
    timeout_seconds: float
    max_retries: int
    max_concurrent_calls: int


class GymTarget(Message):
    """The Gym evaluation itself: `GymRuntimeConfig` of nhx_evals_sdk plus `GymPlacement`'s
    `agent_ref_name`. `env_secrets` are already variables of the container that runs Gym."""

    agent: str
    agent_config: str | None = None
    agent_ref_name: str | None = None
    resources_server: str
    model_type: str
    bind_resources_server: bool
    hydra_params: dict[str, Any] = Field(default_factory=dict)
    env_vars: dict[str, str] = Field(default_factory=dict)
    env_secret_names: list[str] = Field(default_factory=list)
    """Which variables of that container hold secrets, so that their values are masked in its output."""
    num_repeats: int
    concurrency: int
    startup_timeout_s: float
    collection_timeout_s: float | None = None
    shutdown_grace_s: float
    reward_key: str

    @property
    def agent_instance(self) -> str:
        """The agent instance a sandboxed rollout is routed to."""
        return self.agent_ref_name or self.agent


class Bound(Message):
    """The most that a job may use of something, and the setting that says so, in a user's words."""

    value: int
    setting: str


class BucketAddress(Message):
    """A bucket of an S3 server. Its credentials are files; see `api.object_store`."""

    endpoint: str | None = None
    """None: Amazon's own of the region."""
    region: str
    bucket: str
    prefix: str = ""
    """Everything is below it. Without `/` at its ends."""
    has_session_token: bool = False
    has_certificates: bool = False

    @property
    def location(self) -> str:
        """In a user's words: `s3://bucket/prefix`."""
        return "/".join(filter(None, (f"s3://{self.bucket}", self.prefix)))


class UploadPlan(Message):
    """Where the evaluator brings the bundle when the run is over."""

    address: BucketAddress
    folder: str
    """Below the address: the job's own, by namespace, name and UID, so that no two jobs share one."""
    timeout_s: float


class FetchPlan(Message):
    """What a reader pod is to fetch from a bucket."""

    address: BucketAddress
    path: str
    """Folder of the bundle below the address."""
    target: str
    """Directory that it is copied into."""


class OutcomePlan(Message):
    """Whose outcome a pod is to look for among results that are mounted."""

    uid: str
    attempt: int


class EgressPlan(Message):
    """Hosts that the evaluator opens to a job's Gym, as a forward proxy."""

    allow: list[str]
    """As `api.egress` reads them."""
    shut: list[str] = Field(default_factory=list)
    """Addresses that no name may lead to: what the gate proves shut is not opened here."""


class RolloutRule(Message):
    """What to do about a failed rollout of a class."""

    place: str
    """In a user's words: `spec.failurePolicy.rules[0]`."""
    action: FailureAction
    classes: list[FailureClass]


class EvaluatorPlan(Message):
    """Everything the evaluator is told. Set by the operator as JSON in `EVALUATOR_PLAN_ENV`."""

    namespace: str
    job: str
    uid: str
    attempt: int
    placement: Placement
    dataset_file: str
    dataset_label: str
    """How a user would name the dataset, e.g. `bundled resources_servers/mcqa/data/example.jsonl`."""
    taskset: bool = False
    """The file holds stored tasks, not rows."""
    limit: int | None = None
    task_ids: list[str] = Field(default_factory=list)
    """The only tasks to evaluate; empty: all."""
    max_rollouts: Bound | None = None
    max_tokens: Bound | None = None
    max_calls: Bound | None = None
    max_model_seconds: Bound | None = None
    max_concurrent_calls: Bound | None = None
    egress: EgressPlan | None = None
    """None: the job's Gym reaches its models and nothing else."""
    idle_s: float | None = None
    """Collection ends when for so long nothing happened. None: it may go on for ever."""
    target: GymTarget
    models: list[ModelRoute]
    hosts: int = 1
    environment: bool = False
    """A staged environment lies in `ENVIRONMENT_DIR`."""
    min_coverage: float
    retry_failed: int = 0
    """How many more times a failed rollout is run."""
    rollout_rules: list[RolloutRule] = Field(default_factory=list)
    """Of the rules about failed rollouts the first that fits counts."""
    parallelism: int
    fail_fast: bool = False
    labels: dict[str, str] = Field(default_factory=dict)
    results_location: str
    """Where the bundle is written, in a user's words: `persistentVolumeClaim/NAME` or `emptyDir`."""
    images: dict[str, str] = Field(default_factory=dict)
    """References of the job's images by role: `evaluator`, `gymHost`."""
    upload: UploadPlan | None = None
    """Where it is brought to afterwards."""


class HttpFetch(Message):
    """An archive on a web server."""

    url: str
    sha256: str | None = None


class S3Fetch(Message):
    """Objects of a bucket: those below `prefix`, or the archive `key`."""

    endpoint: str | None = None
    region: str
    bucket: str
    prefix: str | None = None
    key: str | None = None
    sha256: str | None = None


class StagePlan(Message):
    """What one stage container is told: a FileSet's source, and where its files go."""

    job: str
    attempt: int
    file_set: str
    uid: str
    generation: int
    """The FileSet's, so that a report is not taken for one about a later spec."""
    source: str
    """The source in a user's words, e.g. `PersistentVolumeClaim envs`."""
    http: HttpFetch | None = None
    s3: S3Fetch | None = None
    """Neither: the source is mounted at `SOURCE_DIR`."""
    path: str | None = None
    """Folder of the source that is the set's root."""
    digest: str | None = None
    """What the staged tree's digest must be."""
    dataset: str | None = None
    """Stage this one file of the set as `DATASET_FILE`. None: stage an environment."""


class GateTarget(Message):
    """An address that the sandbox must not reach."""

    name: str
    host: str
    """An address, or `NODE_HOST`."""
    port: int
    known_by: str
    """Why a listener is known to be there. Empty: none is, and a refusal proves nothing by itself."""


class GatePlan(Message):
    """What the gate has to show: one address answers, and all of these refuse."""

    evaluator_url: str
    """`http://<cluster IP of the job's Service>:8080`: an address, since the sandbox has no DNS."""
    gate_refused: list[GateTarget] = Field(default_factory=list)
    gate_timeout_s: float = 60.0


class HostPlan(GatePlan):
    """Everything a gym host is told. Set by the operator as JSON in `HOST_PLAN_ENV`."""

    job: str
    uid: str
    attempt: int
    ordinal: int
    target: GymTarget
    models: dict[str, str]
    """Model name of each entry of the job's `models`, by its key: `{"policy": "smollm2-135m"}`."""
    environment: bool = False
    egress: bool = False
    """The evaluator is a forward proxy to some hosts."""


class CanaryPlan(GatePlan):
    """What the client canary is told. In a measurement the listening canary stands where a job has its evaluator."""

    open_timeout_s: float = 60.0
    """How long both listeners may take to answer while the policies let them."""
