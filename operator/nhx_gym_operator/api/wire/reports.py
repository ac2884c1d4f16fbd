"""What a container says at its end: its termination message, and here and there its exit code."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from ..conditions import RunReason
from .endpoints import ModelUsage, Progress
from .message import Message

TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LIMIT_BYTES = 4096
"""The kubelet keeps at most this much of one container's message."""

GATE_OPEN_EXIT_CODE = 3
"""How the container `sandbox-gate` ends when it reached what it must not; any other failure is one
without a verdict."""
FINAL_EXIT_CODES = (0, 1, 128)
"""After which `agent-evaluate` is not started again in its pod: it ended by itself, with an outcome or Python's own
error, or the runtime could not run its command (StartError)."""
NO_OUTCOME_EXIT_CODE = 3
"""How the container `read-outcome` ends when the results hold the job's journal and no outcome that is final."""
NO_RECORDS_EXIT_CODE = 4
"""Likewise when they hold nothing of the job. Any other failure is one to read them."""


class Staged(Message):
    """What was staged: a stage container's termination message, and the file beside a staged environment."""

    digest: str
    files: int
    bytes: int


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


class FailureClass(StrEnum):
    """Why a rollout has no reward. `docs/results.md` has the same table."""

    KILLED = "killed"
    """What ran it was taken away: hosts went away under it three times, Gym says that its agent was stopped, or the job
    ended before it was collected."""
    TIMEOUT = "timeout"
    """It, or a model call of it, did not end within its deadline."""
    TRANSIENT = "transient"
    """A model call failed for a passing reason, and its retries ran out; or Gym's agent says that its verifier failed
    so."""
    MODEL = "model"
    """The model server refused a call for good."""
    CONTEXT = "context"
    """A prompt outgrew the model's context."""
    ENVIRONMENT = "environment"
    """Gym's servers answered with an error, or with something that is no reward."""
    LEGITIMATE = "legitimate"
    """Gym's agent says that an error of its own code, or of the task's, ended it."""
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
    """What the result lacks although the job is complete, e.g. `runner.gym.* is missing: …`."""
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

    @property
    def is_final(self) -> bool:
        """Whether the evaluator ended by itself with it: neither an interim word nor one of being told to end."""
        return self.state != "Running" and self.reason != RunReason.EVALUATOR_LOST
