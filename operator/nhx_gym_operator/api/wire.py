"""What crosses the wire between operator, evaluator and gym host.

Three parties meet here and nowhere else: the operator writes a plan into a pod's environment, the
evaluator serves one HTTP API to its hosts and to the operator, and its outcome travels back in the
container's termination message. Ports, paths, mount points and message shapes have one definition,
this one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

EVALUATOR_PORT = 8080
"""The evaluator's one API: model gateway, staged environment, host registration, progress."""
CANARY_PORT = 8081
"""A second listener of the evaluator that answers nothing. It is known to be up, and a sandbox must
not reach it: a refusal there proves that the host's egress policy is enforced."""
HOST_PORT = 8000
"""The gym host's only open port: `/health`, `/rollouts/run`, `/aggregate_metrics`, `/shutdown`."""
KUBELET_PORT = 10250
"""Where a node's kubelet listens unless its administrator moved it (`port` of KubeletConfiguration)."""

HEALTH_PATH = "/healthz"
ENVIRONMENT_PATH = "/environment"
HOSTS_PATH = "/hosts"
HOST_LOG_PATH = "/hosts/log"
"""`POST`, once per host at its end: all that Gym printed there, as plain text with secrets masked."""
PROGRESS_PATH = "/progress"
MODEL_PATH = "/models/{name}/v1"
"""Prefix under which an OpenAI-compatible API of the job's model `name` is served."""

HOST_HEALTH_PATH = "/health"
HOST_ROLLOUTS_PATH = "/rollouts/run"
HOST_AGGREGATE_PATH = "/aggregate_metrics"
HOST_SHUTDOWN_PATH = "/shutdown"

IMAGES_HEADER = "X-Nhx-Images"
"""With the operator's `GET /progress`: image digest by role as a JSON object. Only the kubelet knows them, and it tells
nobody but the API server."""
ROLLOUT_HEADER = "X-Nhx-Rollout"
"""With a model call: Gym's id of the rollout that it belongs to, `<task index>-<rollout index>`. The word of the host,
which counts only for rollouts that are under way there. Set by `in_gym/sitecustomize.py`."""
ENVIRONMENT_DIGEST_HEADER = "X-Nhx-Environment-Digest"
KILLED_HEADER = "X-Nhx-Killed"
"""With a host's log: how many of Gym's processes did not end within the grace."""
HOST_LOG_LIMIT_BYTES = 64 << 20
HOST_ANSWER_LIMIT_BYTES = 32 << 20
"""The largest answer to one rollout, its model calls included. The stock runtime's 256 MiB are for a chunk of rollouts
and a trainer's memory; an evaluator holds many answers at a time in its pod's 2 GiB."""

EVALUATOR_PLAN_ENV = "NHX_EVALUATOR_PLAN"
HOST_PLAN_ENV = "NHX_HOST_PLAN"
FETCH_PLAN_ENV = "NHX_FETCH_PLAN"
STAGE_PLAN_ENV = "NHX_STAGE_PLAN"
CANARY_PLAN_ENV = "NHX_CANARY_PLAN"
"""Environment variables that carry the plans below as JSON."""
NODE_ADDRESSES_ENV = "NHX_NODE_ADDRESSES"
"""The addresses of a pod's node, with commas between them (`status.hostIPs`): only the pod can know them."""
NODE_HOST = "node"
"""Stands in a plan for each of those addresses."""

RESULTS_DIR = "/job/results"
JOURNAL = f"{RESULTS_DIR}/journal.jsonl"
"""Every rollout as soon as it is recorded; bundles are made of it at the end."""
EVALUATOR_LOG = f"{RESULTS_DIR}/evaluator.log"
"""What the evaluator logged, of every attempt: a pod's own log goes with it. Beside the bundle, since it is still
written when that is complete."""
WORK_DIR = "/job/work"
DATASET_DIR = "/job/dataset"
DATASET_NAME = "dataset.jsonl"
DATASET_FILE = f"{DATASET_DIR}/{DATASET_NAME}"
SOURCE_DIR = "/job/source"
"""Where a FileSet that is a volume is mounted, into its stage container only."""
SOURCE_SECRETS_DIR = "/var/run/secrets/nhx/source"
"""`<dir>/<name>/value`, likewise: `AUTHORIZATION` of a web server, and the names of `api.object_store`."""
AUTHORIZATION = "authorization"
ENVIRONMENT_DIR = "/job/environment"
BUNDLED_DATASETS_DIR = "/opt/nhx/datasets"
MODEL_KEYS_DIR = "/var/run/secrets/nhx/models"
"""`<dir>/<model name>/api-key`: mounted into the evaluator and nowhere else."""
MODEL_CERTIFICATES_DIR = "/var/run/secrets/nhx/model-certificates"
"""`<dir>/<model name>/value`: authorities of an endpoint with a private one."""
OBJECT_STORE_DIR = "/var/run/secrets/nhx/object-store"
"""`<dir>/<name>/value`: what the evaluator needs to write to the job's bucket."""
TOKENS_DIR = "/var/run/secrets/nhx/tokens"
"""Evaluator: files `progress` and `host-<ordinal>`. Gym host: the one file `host`."""
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LIMIT_BYTES = 4096
"""The kubelet keeps at most this much of one container's message."""

GATE_OPEN_EXIT_CODE = 3
"""How the container `sandbox-gate` ends when it reached what it must not; any other failure is one
without a verdict."""


def http_url(address: str, port: int) -> str:
    """`http://ADDRESS:PORT` of an IPv4 or IPv6 address, without a path."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


class Placement(StrEnum):
    SANDBOXED = "Sandboxed"
    COLOCATED = "Colocated"


class Message(BaseModel):
    """Base of everything on the wire. Unknown fields are ignored, so that an operator and the pods
    of an older or newer release understand each other."""

    model_config = ConfigDict(extra="ignore")


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
    idle_s: float | None = None
    """Collection ends when for so long nothing happened. None: it may go on for ever."""
    target: GymTarget
    models: list[ModelRoute]
    hosts: int = 1
    environment: bool = False
    """A staged environment lies in `ENVIRONMENT_DIR`."""
    min_coverage: float
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


class Staged(Message):
    """What was staged: a stage container's termination message, and the file beside a staged environment."""

    digest: str
    files: int
    bytes: int


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


class CanaryPlan(GatePlan):
    """What the client canary is told. In a measurement the listening canary stands where a job has its evaluator."""

    open_timeout_s: float = 60.0
    """How long both listeners may take to answer while the policies let them."""


class Kernel(Message):
    """The kernel that a canary runs on, by its own words. Empty where it says nothing."""

    boot_id: str = ""
    """/proc/sys/kernel/random/boot_id: made anew at each boot, so that two pods that see the same one share a kernel.
    The kubelet reports the node's as `status.nodeInfo.bootID`."""
    release: str = ""
    """`uname -r`, which the kubelet reports as `status.nodeInfo.kernelVersion`."""
    words: str = ""
    """`uname -v`, and the first lines of the kernel's log and of /proc/version."""


class CanaryReport(Message):
    """Termination message of the client canary's first container, which found both listeners reachable."""

    kernel: Kernel
    listener_kernel: Kernel
    """What the listening canary, which has no RuntimeClass, says it runs on."""
    pids_limit: str = ""
    """`pids.max` as seen from inside; empty where it is not to be seen."""


class HostState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class HostRegistration(Message):
    """Body of `POST /hosts`, sent when the launcher starts (which starts the startup timeout) and
    again when Gym is ready or has failed."""

    ordinal: int
    state: HostState
    port: int = Field(default=HOST_PORT, ge=1, le=65535)
    """At the address that the registration comes from."""
    boot_id: str
    """Random per launcher process: a host that restarted is a new host."""
    message: str = ""
    output_tail: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    kernel: str = ""
    """`uname -v` and the first line of dmesg or /proc/version: what the sandbox says it runs on."""


class Stage(StrEnum):
    STARTING = "starting"
    COLLECTING = "collecting"
    SCORING = "scoring"
    UPLOADING = "uploading"
    DONE = "done"


class Notice(Message):
    """Something about the dataset or the model calls that a job's owner should know, though it does not change how
    the job ends: a condition of the job by its type, one of `api.conditions.NOTICES`, that is True."""

    type: str
    reason: str
    message: str


class Latency(Message):
    """How long the answered calls to a model took, retries and the waits between them included."""

    mean: float
    p50: float
    p99: float
    """Half of the calls took no longer, and 99 of 100, to within a tenth."""
    max: float


class ModelUsage(Message):
    """What the gateway counted for one model: calls answered, calls refused or failed, tokens."""

    calls: int = 0
    failed_calls: int = 0
    aborted_calls: int = 0
    """Calls whose caller left before the answer, once they were on their way to the model. No answers: nobody knows
    whether there would have been one."""
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    unmetered_calls: int = 0
    """Calls answered or aborted, be it in part, without stating their tokens: with any of these the counts are lower
    bounds."""
    seconds: float = 0.0
    """What all calls took, each by itself, with its retries and the waits between them."""
    latency_seconds: Latency | None = None
    """Of one model over the whole job; a rollout's usage has none."""


class Progress(Message):
    """Body of `GET /progress`. Counts are rollouts; `mean_reward` is over those done, unscaled."""

    stage: Stage
    attempt: int
    done: int = 0
    failed: int = 0
    total: int = 0
    mean_reward: float | None = None
    hosts_ready: int = 0
    hosts: int = 0
    message: str = ""
    notices: list[Notice] = Field(default_factory=list)
    usage: dict[str, ModelUsage] = Field(default_factory=dict)
    """By the model's name in the job, so far. An `Outcome` has its own."""


class FailureClass(StrEnum):
    """Why a rollout has no reward."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    TRANSIENT = "transient"
    """A model call failed for a passing reason, and its retries ran out."""
    MODEL = "model"
    """The model server refused a call for good."""
    CONTEXT = "context"
    """A prompt outgrew the model's context."""
    ENVIRONMENT = "environment"
    BUDGET = "budget"
    """The job had spent the model calls, tokens or seconds that it may."""


class Aggregate(Message):
    """One aggregate of the SDK's summary, in the units of whoever computed it.

    `value` is the SDK's `headline_value`. `kind` is its `score_type`; the statistics are set for
    ranges only. `unit` is `reward` for the SDK's own scores and `gym` under `runner.gym.`.
    """

    name: str
    value: float | None = None
    kind: str
    unit: str
    count: int | None = None
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    median: float | None = None
    std_dev: float | None = None
    sample_std_dev: float | None = None


class Outcome(Message):
    """The evaluator's termination message: how the job ended, small enough for 4,096 bytes."""

    version: Literal[1] = 1
    state: Literal["Running", "Complete", "Failed"]
    """`Running` is written early, so that a killed evaluator still says how far it came."""
    reason: str = ""
    message: str = ""
    failure_class: FailureClass | None = None
    progress: Progress
    coverage: float | None = None
    """Rollouts with a reward, divided by rollouts asked for."""
    degraded: list[str] = Field(default_factory=list)
    """What the result lacks although the job is complete, e.g. `runner.gym aggregates missing: …`."""
    warnings: list[str] = Field(default_factory=list)
    aggregates: list[Aggregate] = Field(default_factory=list)
    aggregates_dropped: int = 0
    usage: dict[str, ModelUsage] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    host_kernel: str = ""
    """What the first host's sandbox says it runs on; empty when colocated."""
    results_path: str = ""
    """The bundle's directory below `RESULTS_DIR`, e.g. `attempt-1`; below `results_location` once that is set."""
    results_location: str = ""
    """`s3://bucket/prefix` of a bundle that was uploaded."""
    upload_failed: bool = False
    """The bundle is not where the job wants it; `message` or `degraded` says why."""
    environment_digest: str | None = None
