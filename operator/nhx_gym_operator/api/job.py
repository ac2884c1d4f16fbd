"""AgentEvalJob: one evaluation of one agent in one Gym environment.

These models, with those of `tasks`, `target`, `models`, `results` and `status`, are the only description of the
resource: the CRD, its checks and its `kubectl explain` texts are generated from them. Every field of the spec carries
the place that named it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from .constants import API_VERSION, JOB_CONTROLLER, JOB_KIND, MAX_HOSTS, MAX_RETRIES, POLICY_MODEL
from .egress import Egress
from .failure_policy import FailurePolicy
from .limits import Limits
from .models import ModelSpec
from .origins import CUSTOM_ENVIRONMENT_PAGE, batch_job, kubernetes, ours, page, run_config
from .resource import WEEK_SECONDS, ApiModel, ObjectMeta, fixed_but, rule, validated
from .results import EmptyDirResults, Results
from .status import JobStatus
from .target import Target
from .tasks import Tasks

MAX_SECONDS = 2**31 - 1
"""As batch/v1 Job, whose bounds are 32-bit numbers."""


CHANGEABLE = (
    "activeDeadlineSeconds",
    "backoffLimit",
    "cancel",
    "startingDeadlineSeconds",
    "suspend",
    "ttlSecondsAfterFinished",
)
"""Fields of the spec that can change once the job exists: those that steer its life, as in batch/v1 Job."""


MANAGED_BY_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$"
"""A domain, and a path of RFC 3986 in it, as batch/v1 Job asks."""


class JobSpec(ApiModel):
    """What to evaluate, against what, and where the result goes."""

    model_config = ConfigDict(
        json_schema_extra=fixed_but(
            *CHANGEABLE,
            rules=[
                rule(
                    "!has(self.target.gym.envSecrets) || !self.target.gym.envSecrets.exists(name, "
                    "self.models.exists(m, has(m.apiKey) && m.apiKey.secretKeyRef.name == "
                    "self.target.gym.envSecrets[name].secretKeyRef.name))",
                    "envSecrets may not name a Secret that a model's apiKey names: environment code reads what is in "
                    "envSecrets, and Gym needs no model's key; put other values into a Secret of their own",
                    field=".target.gym.envSecrets",
                ),
                rule(
                    "self.hosts <= self.target.gym.concurrency",
                    "hosts may not be above spec.target.gym.concurrency, which is shared over all of them: the others "
                    "would have nothing to do",
                    field=".hosts",
                ),
            ],
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
    retry_failed: Annotated[int, ours("further tries of a failed rollout")] = Field(
        default=0,
        ge=0,
        le=MAX_RETRIES,
        description="How many more times a failed rollout is run, over all attempts of the job, once every other one "
        "has ended. Never run again: one with a reward, of the class `budget`, or that Gym calls terminal.",
    )
    parallelism: Annotated[int, run_config("parallelism")] = Field(
        default=4, ge=1, le=256, description="Tasks scored at once. Does not speed up collection."
    )
    fail_fast: Annotated[bool, run_config("fail_fast")] = Field(
        default=False,
        description="End the job at the first trial that cannot be scored, instead of counting it in the coverage. "
        "A rollout without a reward is no such trial: `minCoverage` decides about those.",
    )
    hosts: Annotated[int, ours("gym hosts that share a job's rollouts", "ours: one host")] = Field(
        default=1,
        ge=1,
        le=MAX_HOSTS,
        description="Gym hosts of a sandboxed job, each a pod of its own. The next rollout goes to whichever has room, "
        "and `spec.target.gym.concurrency` is shared over all of them. One that is lost is replaced, and its "
        "unfinished rollouts go to others. More than one needs a sandbox.",
    )
    limits: Annotated[Limits, ours("what a job may cost at most")] = Field(
        default=Limits(), description="Bounds on this job's rollouts and model calls, their tokens and their time."
    )
    egress: Annotated[Egress, ours("what a sandbox may reach, within what the administrator allows")] = Field(
        default=Egress(), description="Hosts of the network that a sandboxed Gym may reach."
    )
    idle_timeout_seconds: Annotated[
        float | None, ours("ends a collection in which nothing happens", "ours: an hour")
    ] = Field(
        default=3600.0,
        gt=0,
        le=WEEK_SECONDS,
        description="End the collection when for so long no model answered and no rollout ended, unless by a "
        "deadline. The longest of spec.models[].timeoutSeconds is waited for in any case. Raise it for an "
        "environment that works longer without asking a model. null: no limit.",
        json_schema_extra={"nullable": True},
    )
    labels: Annotated[dict[str, Annotated[str, Field(max_length=256)]], run_config("labels")] = Field(
        default={},
        max_length=32,
        description="Tags recorded in the result bundle, e.g. `benchmark: mcqa`. They are not "
        "Kubernetes labels and may hold any text.",
    )

    cancel: Annotated[bool, ours("ends a job from outside")] = Field(
        default=False,
        description="True ends the job: its pods are told to end, rollouts recorded so far stay where the results "
        "go, and the phase becomes Cancelled. Cannot be taken back; a job that has ended ignores it.",
        json_schema_extra=validated(
            rule(
                "self || !oldSelf",
                "a job that was cancelled stays cancelled; apply it again under another name",
            )
        ),
    )

    active_deadline_seconds: Annotated[int | None, batch_job("activeDeadlineSeconds")] = Field(
        default=None,
        ge=1,
        le=MAX_SECONDS,
        description="Longest time from `status.startTime` to the end, all waits and attempts included. After it the "
        "pods are told to end, rollouts recorded so far stay where the results go, and the job fails with "
        "DeadlineExceeded. Can be changed while the job runs. Unset: no such bound.",
    )
    starting_deadline_seconds: Annotated[int | None, kubernetes("CronJobSpec.startingDeadlineSeconds")] = Field(
        default=None,
        ge=1,
        le=MAX_SECONDS,
        description="Longest time from `status.startTime` until all pods of the job have started: for what it names to "
        "be there, for a quota, a node, an image. After it the job fails with StartingDeadlineExceeded. Can be changed "
        "until then. Unset: the operator's `timeouts` alone bound each wait.",
    )
    backoff_limit: Annotated[int, batch_job("backoffLimit")] = Field(
        default=6,
        ge=0,
        le=MAX_SECONDS,
        description="How many lost attempts are made good: the evaluator's pod vanished, was evicted or killed. The "
        "next attempt collects only what is missing, after 10 s, then 20 s, 40 s and so on, at most 6 minutes. In each "
        "attempt, each gym host is replaced so often too. Failed rollouts are no lost attempt. Can be changed.",
    )
    failure_policy: Annotated[FailurePolicy | None, batch_job("podFailurePolicy")] = Field(
        default=None,
        description="What to do about failed rollouts of a class and attempts lost by a cause, before `retryFailed` "
        "and `backoffLimit` are asked. Unset: these alone decide.",
    )
    managed_by: Annotated[str | None, batch_job("managedBy")] = Field(
        default=None,
        max_length=63,
        pattern=MANAGED_BY_PATTERN,
        description=f"Who looks after the job, as DOMAIN/PATH. Unset, or `{JOB_CONTROLLER}`: this operator. With any "
        "other value it makes nothing for the job and writes no status. Cannot be changed.",
    )
    suspend: Annotated[bool, batch_job("suspend")] = Field(
        default=False,
        description="True: the job has no pods. Those that run are told to end, and what was recorded stays on the "
        "claim; false lets it go on and collect what is missing. Deadlines begin anew then. A job whose records are in "
        "an emptyDir goes on instead, and says so: they would be lost. Can be changed until the job has ended.",
    )
    ttl_seconds_after_finished: Annotated[int | None, batch_job("ttlSecondsAfterFinished")] = Field(
        default=None,
        ge=0,
        le=MAX_SECONDS,
        description="Delete the job so many seconds after it has ended, and with it all that a deleted job takes "
        "along: a results claim of its own too, unless its retention is Retain. 0: at once. Can be changed, after the "
        "end as well. Unset: the job stays.",
    )

    @property
    def policy(self) -> ModelSpec:
        """The model under evaluation."""
        return next(model for model in self.models if model.name == POLICY_MODEL)


class AgentEvalJob(ApiModel):
    """One evaluation of an agent in a NeMo Gym environment, run on this cluster."""

    api_version: str = API_VERSION
    kind: str = JOB_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: JobSpec = Field(
        description="What to evaluate. Of a job that exists, only these can change: "
        f"{', '.join(f'`{name}`' for name in CHANGEABLE)}."
    )
    status: JobStatus = Field(default_factory=JobStatus, description="What is known about the job.")
