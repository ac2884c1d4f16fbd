"""What is known about a job: written by the operator alone."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from .constants import MAX_HOSTS, Isolation, Phase, Placement
from .egress import MAX_NAMED
from .outcome import MAX_AGGREGATE_NAME, MAX_AGGREGATES
from .resource import CONDITION_LIST, ApiModel, Condition, Timestamp

MAX_PLACEMENT_REASON = 2048
"""Characters of it: a measurement's outcome fits."""
MAX_LOST_MESSAGE = 512
"""Characters of what is kept of a lost gym host's end."""
MAX_COUNT = 2**53 - 1
"""The largest number that every reader of JSON keeps as it is."""


class Reported(ApiModel):
    """Numbers that pods report. One that is none, or without end, is none to a JSON reader either."""

    model_config = ConfigDict(allow_inf_nan=False)


class JobProgress(Reported):
    """How far the rollouts are."""

    done: int = Field(default=0, ge=0, le=MAX_COUNT, description="Rollouts with a reward.")
    failed: int = Field(default=0, ge=0, le=MAX_COUNT, description="Rollouts that ended without one.")
    total: int = Field(default=0, ge=0, le=MAX_COUNT, description="Rollouts asked for: tasks x numRepeats.")
    mean_reward: float | None = Field(default=None, description="Mean reward of the rollouts done so far, unscaled.")
    summary: str = Field(default="", max_length=64, description="Finished of total, e.g. `6/10`, failed ones included.")


class JobHosts(Reported):
    """Gym hosts of a sandboxed job."""

    ready: int = Field(default=0, ge=0, le=MAX_COUNT, description="Hosts that take rollouts.")
    desired: int = Field(default=0, ge=0, le=MAX_COUNT, description="Hosts the job asked for.")
    summary: str = Field(default="", max_length=64, description="Ready of desired, e.g. `1/1`.")


class JobHostPod(Reported):
    """One gym host of the current attempt, and how often it was lost."""

    host: int = Field(ge=0, description="The host's number, from 0.")
    uid: str = Field(default="", max_length=64, description="UID of the pod that it has, or had last.")
    gone: bool = Field(default=False, description="Whether that pod was lost. It is in `lost` then.")
    lost: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Pods that it lost in this attempt. After more than `spec.backoffLimit` it is not replaced.",
    )
    lost_time: Timestamp | None = Field(
        default=None, description="When the last of them ended, or was seen to be gone."
    )
    lost_message: str | None = Field(default=None, max_length=MAX_LOST_MESSAGE, description="How that one ended.")


class JobAggregate(Reported):
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


class JobLatency(Reported):
    """How long the answered calls to a model took, in seconds, retries and the waits between them included."""

    mean: float = Field(ge=0, le=MAX_COUNT, description="Of all of them.")
    p50: float = Field(ge=0, le=MAX_COUNT, description="Half of them took no longer, to within a tenth.")
    p99: float = Field(ge=0, le=MAX_COUNT, description="99 of 100 took no longer, to within a tenth.")
    max: float = Field(ge=0, le=MAX_COUNT, description="The longest.")


class JobModelUsage(Reported):
    """What the gateway counted for one model."""

    calls: int = Field(default=0, ge=0, le=MAX_COUNT, description="Calls answered.")
    failed_calls: int = Field(default=0, ge=0, le=MAX_COUNT, description="Calls refused or failed for good.")
    aborted_calls: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Calls whose caller left before the answer; they count towards `limits.calls`.",
    )
    input_tokens: int = Field(default=0, ge=0, le=MAX_COUNT, description="Tokens sent, as the endpoint counts.")
    output_tokens: int = Field(default=0, ge=0, le=MAX_COUNT, description="Tokens received.")
    total_tokens: int = Field(default=0, ge=0, le=MAX_COUNT, description="Both together.")
    unmetered_calls: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Calls answered or aborted, be it in part, that stated no tokens: with any, the counts are lower "
        "bounds.",
    )
    seconds: float = Field(
        default=0.0,
        ge=0,
        le=MAX_COUNT,
        description="What all calls took, each by itself, with retries and the waits between them.",
    )
    latency_seconds: JobLatency | None = Field(default=None, description="How long answered calls took.")


class EgressEntry(Reported):
    """An entry of `spec.egress.allow`, and how often it was made use of."""

    entry: str = Field(max_length=260, description="As `spec.egress.allow` has it.")
    requests: int = Field(default=0, ge=0, le=MAX_COUNT, description="Requests that it allowed.")


class JobEgress(Reported):
    """What a sandboxed Gym asked of other hosts than its models in the latest attempt, as `egress.jsonl` of the bundle
    has it request by request; those without the host's token are counted only."""

    requests: int = Field(default=0, ge=0, le=MAX_COUNT, description="Requests and tunnels, refused ones included.")
    refused: int = Field(default=0, ge=0, le=MAX_COUNT, description="Those that were refused.")
    bytes_sent: int = Field(default=0, ge=0, le=MAX_COUNT, description="Bytes of content that left the sandbox.")
    bytes_received: int = Field(default=0, ge=0, le=MAX_COUNT, description="Bytes of content that came in.")
    passed: list[EgressEntry] = Field(
        default=[],
        max_length=MAX_NAMED,
        description="The entries that allowed the most requests, those first; the others are in the bundle.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["entry"]},
    )


class JobResults(ApiModel):
    """Where the result bundle is."""

    location: str = Field(
        default="",
        max_length=640,
        description="`persistentVolumeClaim/NAME`, or `emptyDir` of the evaluator pod; `s3://BUCKET/PREFIX` once the "
        "bundle is there.",
    )
    path: str = Field(default="", max_length=512, description="Directory of the bundle in it, e.g. `attempt-1`.")
    image: str = Field(
        default="",
        max_length=1024,
        description="The evaluator's image, as the job's pods name it. A pod that reads the results runs it too.",
    )


class JobRan(ApiModel):
    """What really ran, so that a result can be repeated."""

    images: dict[str, str] | None = Field(default=None, description="Image digest by role, as the kubelet reported it.")
    versions: dict[str, str] | None = Field(default=None, description="Version of each package that shapes the result.")
    environment_digest: str | None = Field(
        default=None, max_length=128, description="Digest of the staged environment."
    )
    earlier_environment_digests: list[str] | None = Field(
        default=None,
        max_length=32,
        description="Digests that earlier attempts staged, if the FileSet's content changed in between.",
    )
    host_kernel: str | None = Field(default=None, max_length=512, description="The kernel that the Gym host saw.")


class JobStatus(Reported):
    """What is known about the job. Written by the operator alone."""

    phase: Phase | None = Field(
        default=None,
        description="One word for people, computed from the conditions. Programs read those.",
    )
    reason: str | None = Field(
        default=None,
        max_length=1024,
        description="The reason of the condition that explains the phase, for the table: how the job ended, what it "
        "waits for, or what it is at.",
    )
    observed_generation: int | None = Field(
        default=None, ge=0, le=MAX_COUNT, description="`metadata.generation` that this status speaks of."
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
    placement_reason: str | None = Field(
        default=None,
        max_length=MAX_PLACEMENT_REASON,
        description="Why the job was placed so: what was measured of the sandbox, or why there is none.",
    )
    model: str | None = Field(default=None, max_length=256, description="Model name of the policy, for the table.")
    attempt: int | None = Field(default=None, ge=1, description="Number of the current attempt.")
    start_time: Timestamp | None = Field(
        default=None,
        description="When the operator took the job up; of one that was suspended, when it was resumed. The job's "
        "deadlines count from it.",
    )
    pods_start_time: Timestamp | None = Field(default=None, description="When all pods of the job had started.")
    completion_time: Timestamp | None = Field(
        default=None, description="When the job succeeded, failed or was cancelled."
    )
    ended_attempt: int | None = Field(
        default=None,
        ge=1,
        description="Number of the last attempt that is over without a result: it was lost, or the job was suspended.",
    )
    lost_attempts: int | None = Field(
        default=None,
        ge=0,
        le=MAX_COUNT,
        description="Attempts that were lost. More than `spec.backoffLimit` end the job.",
    )
    ignored_attempts: int | None = Field(
        default=None,
        ge=0,
        description="Attempts that were lost and that a rule of `spec.failurePolicy` ignores: they are not in "
        "`lostAttempts`.",
    )
    next_attempt_time: Timestamp | None = Field(
        default=None, description="When the attempt after a lost one may start."
    )
    progress: JobProgress | None = Field(default=None, description="How far the rollouts are.")
    reward: str | None = Field(
        default=None,
        max_length=32,
        description="`gym_reward.reward` of a finished job, the mean so far of a running one; two "
        "decimals, for the table. Exact values are in `aggregates` and `progress`.",
    )
    hosts: JobHosts | None = Field(default=None, description="Gym hosts of a sandboxed job.")
    host_pods: list[JobHostPod] | None = Field(
        default=None,
        max_length=MAX_HOSTS,
        description="The pod of each gym host, and how often the host was lost in the current attempt.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["host"]},
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=16,
        description="Accepted, Staged, SandboxReady, Running, Suspended, Complete, Degraded, Failed; RowsCollapsed, "
        "PromptsMissing, RowFieldsMissing, ModelCallsUnplaced, ModelAnsweredAs and ModelInDoubt where there is "
        "something to say about the dataset or the models.",
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
    aggregates_dropped: int | None = Field(
        default=None, ge=0, le=MAX_COUNT, description="Aggregates that are only in the bundle."
    )
    coverage: float | None = Field(
        default=None, ge=0, le=1, description="Rollouts with a reward, divided by those asked for."
    )
    usage: dict[str, JobModelUsage] | None = Field(
        default=None,
        description="Calls, tokens and latency by the model's name in the spec; of a running job as they were when the "
        "last rollout ended.",
    )
    egress: JobEgress | None = Field(
        default=None,
        description="What a sandboxed Gym asked of the hosts of `spec.egress.allow` and of others; of a running job as "
        "it was when the last rollout ended.",
    )
    results: JobResults | None = Field(default=None, description="Where the result bundle is.")
    ran: JobRan | None = Field(default=None, description="Images and packages that ran.")
