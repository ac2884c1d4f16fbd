"""What hosts, evaluator and operator ask each other over HTTP: ports, paths, headers, bodies."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from .message import Message

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


def http_url(address: str, port: int) -> str:
    """`http://ADDRESS:PORT` of an IPv4 or IPv6 address, without a path."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


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
    trimmed: list[str] = Field(default_factory=list)
    """Variables of `envSecrets` that white space was stored around."""


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


class EgressUse(Message):
    """What a sandbox asked of its evaluator as a forward proxy, in one attempt."""

    requests: int = 0
    """All, the refused ones too."""
    refused: int = 0
    sent: int = 0
    """Bytes of what passed, as `received`."""
    received: int = 0
    passed: dict[str, int] = Field(default_factory=dict)
    """Requests that were not refused, by the entry of `spec.egress.allow` that allowed them: never by what the sandbox
    wrote. Those with the most, the most first."""


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
    egress: EgressUse | None = None
    """None where nothing but models is open to the job's Gym."""
