"""Condition types and reasons of both resources: every word a script may match stands here.

A reason is part of the API: it may be added, and it is never renamed. The text beside each one says
when it is used; the condition's message carries the particulars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class ConditionType(StrEnum):
    """Types in `AgentEvalJob.status.conditions`."""

    ACCEPTED = "Accepted"
    """The spec can be run here; placement is pinned. False: refused, or something it names is missing."""
    STAGED = "Staged"
    """What FileSets hold lies in the evaluator, verified. Only for jobs with FileSets that have to be staged."""
    SANDBOX_READY = "SandboxReady"
    """The gate saw refused what must be refused, and Gym answers. Only for sandboxed jobs."""
    RUNNING = "Running"
    """Rollouts are being collected or scored."""
    SUSPENDED = "Suspended"
    """Only if `spec.suspend` was ever true: the job has no pods, and keeps what it recorded."""
    COMPLETE = "Complete"
    """Final: enough rollouts were recorded and scored."""
    ROWS_COLLAPSED = "RowsCollapsed"
    """Only if so: rows that are equal became one task. The result is whole; the data is probably not as meant."""
    PROMPTS_MISSING = "PromptsMissing"
    """Only if so: rows carry no prompt. Right where the agent makes it, else they lack their prompt template."""
    ROW_FIELDS_MISSING = "RowFieldsMissing"
    """Only if so: no row has a field that every example row of the bundled resources server has. The verifier may
    score 0 for want of it."""
    MODEL_CALLS_UNPLACED = "ModelCallsUnplaced"
    """Only if so: model calls failed that could not be told apart by rollout, so that rewards may stand on an answer
    that the model never gave."""
    MODEL_ANSWERED_AS = "ModelAnsweredAs"
    """Only if so: an endpoint's answers name another model than it was asked for, though rightly perhaps: an alias."""
    MODEL_IN_DOUBT = "ModelInDoubt"
    """Only if so: the first look at a model's endpoint, before Gym is up, found it out of reach, refusing the key, or
    elsewhere. Its server may be starting, so that ends nothing. False once a model has answered."""
    DEGRADED = "Degraded"
    """The result stands, but lacks something that the message names."""
    FAILED = "Failed"
    """Final: no usable result, though what was scored is still shown. Of a cancelled job too: its reason tells."""


FINAL = (ConditionType.COMPLETE, ConditionType.FAILED)
"""A job of which one of these is True has ended."""


NOTICES = (
    ConditionType.ROWS_COLLAPSED,
    ConditionType.PROMPTS_MISSING,
    ConditionType.ROW_FIELDS_MISSING,
    ConditionType.MODEL_CALLS_UNPLACED,
    ConditionType.MODEL_ANSWERED_AS,
    ConditionType.MODEL_IN_DOUBT,
)
"""What an evaluator may say about the dataset and the model calls; none changes how the job ends."""


class FileSetConditionType(StrEnum):
    """Types in `FileSet.status.conditions`."""

    RESOLVED = "Resolved"
    """Every file the set names can be read from its source."""


class AcceptedReason(StrEnum):
    """Reasons of `Accepted`, and of `Failed` when a job ends before it ran."""

    ACCEPTED = "Accepted"
    """True: the spec is valid, everything it names exists, placement is decided."""
    INVALID_SPEC = "InvalidSpec"
    """The spec contradicts itself in a way that the API server's schema cannot see."""
    UNKNOWN_BUNDLED_SERVER = "UnknownBundledServer"
    """No resources server of that name is in the images, and no environment supplies it."""
    UNKNOWN_BUNDLED_AGENT = "UnknownBundledAgent"
    """No agent of that name is in the images, no environment supplies it, and Gym would go by `agentRefName` alone."""
    OTHER_BUNDLED_AGENT = "OtherBundledAgent"
    """`agentRefName` names an instance of another agent than `agent`, and a sandboxed Gym would go by `agentRefName`
    alone, a colocated one by `agent`."""
    BUNDLED_SERVER_LACKS_DEPENDENCIES = "BundledServerLacksDependencies"
    """The resources server is in the image, packages that it imports are not."""
    SANDBOX_UNAVAILABLE = "SandboxUnavailable"
    """The administrator requires a sandbox that this cluster does not offer, or was measured not to."""
    SANDBOX_NOT_MEASURED = "SandboxNotMeasured"
    """The job waits until canary pods have shown whether a sandbox of this cluster holds, at most the operator's
    `timeouts.podStartSeconds`. Nobody is let in, or refused, for what was not measured."""
    ENVIRONMENT_NEEDS_SANDBOX = "EnvironmentNeedsSandbox"
    """Code from a FileSet runs sandboxed or not at all, and this installation does not sandbox."""
    HOSTS_NEED_SANDBOX = "HostsNeedSandbox"
    """`spec.hosts` is above 1, and this installation does not sandbox: a colocated job has one Gym."""
    FILESET_NOT_FOUND = "FileSetNotFound"
    """The job names a FileSet that is not in its namespace."""
    FILESET_NOT_RESOLVED = "FileSetNotResolved"
    """The FileSet exists, its source does not (yet) hold what it names."""
    FILESET_WRONG_PURPOSE = "FileSetWrongPurpose"
    """A dataset was given as environment, or the reverse."""
    FILESET_FILE_MISSING = "FileSetFileMissing"
    """The FileSet has no file at the path that the dataset names."""
    CONFIG_MAP_NOT_FOUND = "ConfigMapNotFound"
    """The job, or a FileSet of it, names a ConfigMap that is not in the namespace."""
    CONFIG_MAP_KEY_MISSING = "ConfigMapKeyMissing"
    """The ConfigMap exists and has no such key."""
    SECRET_NOT_FOUND = "SecretNotFound"
    """Seen by the kubelet, since the operator may not read Secrets."""
    SECRET_KEY_MISSING = "SecretKeyMissing"
    """The Secret exists and has no such key."""
    CLAIM_NOT_FOUND = "ClaimNotFound"
    """A claim that the job or its FileSet names is not in the namespace."""
    LIMIT_TOO_HIGH = "LimitTooHigh"
    """`spec.limits` asks for more than the operator's own `limits` allow."""
    EGRESS_NOT_ALLOWED = "EgressNotAllowed"
    """`spec.egress.allow` names a host that the operator's `sandbox.egress.allow` does not."""
    INPUTS_TIMEOUT = "InputsTimeout"
    """What was missing is still missing after the operator's `timeouts.waitForInputsSeconds`."""
    ACCESS_DENIED = "AccessDenied"
    """The operator's own role lacks a right it needs; the message names verb and resource."""


class PodReason(StrEnum):
    """Why a job's pods do not exist or do not run. Used by `Staged`, `SandboxReady` and `Running`
    while the job waits, and by `Failed` once a deadline has passed."""

    PODS_CREATED = "PodsCreated"
    """The pods were asked for; nothing is wrong so far."""
    POD_REFUSED = "PodRefused"
    """Quota or admission refused a pod; its sibling was withdrawn and the job backs off."""
    UNSCHEDULABLE = "Unschedulable"
    """The scheduler finds no node; the message is its own."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """The kubelet cannot pull an image; the message is its own."""
    PULL_SECRET_NOT_FOUND = "PullSecretNotFound"
    """An image cannot be pulled, and a pull secret that the pods name is not in the namespace."""
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    """The kubelet cannot build a container from its spec for another reason than a missing input."""
    VOLUME_NOT_READY = "VolumeNotReady"
    """A volume is not bound or does not mount."""
    NODE_NOT_READY = "NodeNotReady"
    """The node of a pod does not report, so that what is said of the pod may be old."""
    CHILD_NOT_OURS = "ChildNotOurs"
    """An object with the name of one of the job's children exists and belongs to someone else."""
    POD_CHANGED = "PodChanged"
    """Admission changed a host pod in a way that its sandbox does not allow."""
    POD_START_TIMEOUT = "PodStartTimeout"
    """Pods were not running within the operator's `timeouts.podStartSeconds`."""


class StagedReason(StrEnum):
    """Reasons of `Staged`."""

    STAGING = "Staging"
    """The stage containers bring the FileSets in."""
    STAGED = "Staged"
    """True: the FileSets are there and as they should be."""
    STAGING_FAILED = "StagingFailed"
    """A FileSet cannot be read, is not what its digest says, or is no valid environment package."""


class SandboxReason(StrEnum):
    """Reasons of `SandboxReady`."""

    GATE_CHECKING = "GateChecking"
    """The sandbox's network policy is being proven."""
    GATE_FAILED = "GateFailed"
    """The gate could not reach a verdict, or the evaluator did not answer it."""
    SANDBOX_OPEN = "SandboxOpen"
    """An address that must be out of reach answered: the network policy is not enforced."""
    HOST_STARTING = "HostStarting"
    """The launcher runs; Gym's servers are coming up."""
    HOST_READY = "HostReady"
    """True: the gate passed and Gym answers, on every host."""
    SOME_HOSTS_READY = "SomeHostsReady"
    """True: rollouts go to some of the job's hosts; the message says what the others wait for. The job goes on."""
    HOST_STARTUP_FAILED = "HostStartupFailed"
    """Gym reported that it cannot start; the message has the end of its output."""
    HOST_LOST = "HostLost"
    """The host pod ended or vanished before the job was done; of several, all."""
    STARTUP_TIMEOUT = "StartupTimeout"
    """Not ready within `spec.target.gym.startupTimeoutSeconds` of the launcher's start."""


class RunReason(StrEnum):
    """Reasons of `Running`, `Suspended`, `Complete`, `Degraded` and `Failed`."""

    COLLECTING = "Collecting"
    """True: rollouts are being collected."""
    SCORING = "Scoring"
    """True: the rollouts are in and are being scored."""
    UPLOADING = "Uploading"
    """The finished bundle is on its way to the object store."""
    RUN_ENDED = "RunEnded"
    """False: the run is over; `Complete` or `Failed` says how. Of `SandboxReady`: it was over before Gym was
    seen to answer."""
    ALL_ROLLOUTS_RECORDED = "AllRolloutsRecorded"
    """Complete: every rollout that was asked for has a reward."""
    MIN_COVERAGE_REACHED = "MinCoverageReached"
    """Complete with fewer rollouts than asked for, but at least `spec.minCoverage` of them."""
    ROLLOUTS_MISSING = "RolloutsMissing"
    """Degraded: some rollouts failed; coverage says how many have a reward."""
    AGGREGATES_MISSING = "AggregatesMissing"
    """Degraded: Gym's own aggregates (`runner.gym.*`) could not be computed."""
    COVERAGE_TOO_LOW = "CoverageTooLow"
    """Fewer rollouts have a reward than `spec.minCoverage` asks for."""
    DATASET_INVALID = "DatasetInvalid"
    """A row cannot be read; the message names file, line and fix."""
    TASK_NOT_FOUND = "TaskNotFound"
    """`spec.tasks.taskIds` names a task that the dataset or taskset does not have."""
    ROLLOUT_LIMIT_EXCEEDED = "RolloutLimitExceeded"
    """tasks x numRepeats are more than the job may collect; nothing was collected."""
    TOKEN_LIMIT_REACHED = "TokenLimitReached"
    """The job's models counted as many tokens as it may spend; what was collected is scored."""
    CALL_LIMIT_REACHED = "CallLimitReached"
    """The job made as many model calls as it may; what was collected is scored."""
    MODEL_TIME_LIMIT_REACHED = "ModelTimeLimitReached"
    """The job's model calls took as many seconds as they may; what was collected is scored."""
    MODEL_UNAVAILABLE = "ModelUnavailable"
    """The model endpoint refused or failed every call."""
    COLLECTION_TIMEOUT = "CollectionTimeout"
    """`spec.target.gym.collectionTimeoutSeconds` passed."""
    COLLECTION_STALLED = "CollectionStalled"
    """For `spec.idleTimeoutSeconds` no rollout ended and no model answered; what was collected is scored."""
    RESULTS_VOLUME_FULL = "ResultsVolumeFull"
    """The volume with the results takes nothing more; the message names it and its size."""
    EVALUATION_FAILED = "EvaluationFailed"
    """The evaluator ended with an error of another kind; the message is its own."""
    EVALUATOR_RESTARTING = "EvaluatorRestarting"
    """The evaluator's container ended without an outcome and is started again in its pod; it goes on from its journal,
    with the gym hosts that are there."""
    EVALUATOR_LOST = "EvaluatorLost"
    """The evaluator pod vanished or was killed before it wrote an outcome, or its node was too busy to start Gym."""
    READING_OUTCOME = "ReadingOutcome"
    """The evaluator pod is gone, and a pod reads from its claim whether it had come to an end."""
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    """More attempts were lost than `spec.backoffLimit` allows."""
    FAILURE_POLICY = "FailurePolicy"
    """A rule of `spec.failurePolicy` ends the job at a failure of this kind; what was collected is scored, unless it
    was an attempt that was lost."""
    UPLOAD_FAILED = "UploadFailed"
    """The bundle could not be brought to the object store; what was scored is in the status. `Degraded` where a claim
    has the bundle, else `Failed`."""
    RESULTS_NOT_FRESH = "ResultsNotFresh"
    """The results volume holds rollouts of another evaluation, which are neither reused nor overwritten."""
    RESULTS_LOST = "ResultsLost"
    """The evaluator is gone, and what it had recorded with it: the emptyDir, or what was on the claim."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """`spec.activeDeadlineSeconds` passed before the job was done; what was recorded is kept."""
    STARTING_DEADLINE_EXCEEDED = "StartingDeadlineExceeded"
    """`spec.startingDeadlineSeconds` passed before all pods of the job had started."""
    SUSPENDING = "Suspending"
    """`spec.suspend` is true; the job's pods are ending."""
    JOB_SUSPENDED = "JobSuspended"
    """True: `spec.suspend` is true, and the job has no pods."""
    JOB_RESUMED = "JobResumed"
    """False: `spec.suspend` is not true any more."""
    RESULTS_WOULD_BE_LOST = "ResultsWouldBeLost"
    """False though `spec.suspend` is true: what was recorded is on an emptyDir, and would go with its pod."""
    CANCELLING = "Cancelling"
    """`spec.cancel` is true; the job's pods are ending."""
    CANCELLED = "Cancelled"
    """`spec.cancel` ended the job before it was done. The phase is Cancelled, not Failed."""


class MeasurementReason(StrEnum):
    """Reasons of events on the ConfigMap that says whether a sandbox of this cluster holds."""

    SANDBOX_HOLDS = "SandboxHolds"
    """What a sandbox relies on was seen to hold."""
    SANDBOX_FAILS = "SandboxFails"
    """The RuntimeClass gives no kernel of its own, or network policies are not enforced: jobs that need a sandbox are
    refused."""
    SANDBOX_NOT_KNOWN = "SandboxNotKnown"
    """The measurement came to no verdict: jobs that need a sandbox wait."""


class StatusReason(StrEnum):
    """Reasons of events about a status that could not be written."""

    STATUS_REFUSED = "StatusRefused"
    """The definition (CRD) in the cluster does not take the status, or a part of it: it is of another release than the
    operator. Apply the operator's CRDs. What only people read is left out of a job's status meanwhile; without more
    than that the job waits."""


class NoticeReason(StrEnum):
    """Reasons of `RowsCollapsed`, `PromptsMissing`, `RowFieldsMissing`, `ModelCallsUnplaced`, `ModelAnsweredAs` and
    `ModelInDoubt`."""

    DUPLICATE_ROWS = "DuplicateRows"
    """Rows that are equal became one task."""
    ROWS_WITHOUT_PROMPT = "RowsWithoutPrompt"
    """Rows carry no prompt."""
    ROWS_UNLIKE_EXAMPLE = "RowsUnlikeExample"
    """No row has a field that every example row of the bundled resources server has."""
    FAILED_CALLS_UNPLACED = "FailedCallsUnplaced"
    """Model calls failed that could not be told apart by rollout."""
    ANSWERED_UNDER_ANOTHER_NAME = "AnsweredUnderAnotherName"
    """An endpoint's answers name another model than it was asked for."""
    ENDPOINT_UNREACHABLE = "EndpointUnreachable"
    """No connection to a model's endpoint came about, or no answer, when it was first looked at."""
    KEY_REFUSED = "KeyRefused"
    """A model's endpoint answered the first look at it with 401 or 403."""
    ENDPOINT_NOT_FOUND = "EndpointNotFound"
    """A model's endpoint answered the first look at it with 404 or a redirect."""
    MODELS_ANSWER = "ModelsAnswer"
    """False: a model that was in doubt has answered since."""


EXPECTED_WHILE_FALSE = frozenset(
    {
        AcceptedReason.SANDBOX_NOT_MEASURED,
        PodReason.PODS_CREATED,
        StagedReason.STAGING,
        SandboxReason.GATE_CHECKING,
        SandboxReason.HOST_STARTING,
        RunReason.RUN_ENDED,
        RunReason.CANCELLING,
        RunReason.SUSPENDING,
        RunReason.READING_OUTCOME,
        RunReason.JOB_RESUMED,
    }
)
"""Reasons of a condition that is False because the job is not that far or is past it, and not because of a problem."""


def explaining(conditions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The one of a job's conditions that explains its phase: the one that ended the job, else what holds it up, else
    what it is at. Empty if there are none."""
    beside = (*FINAL, *NOTICES, ConditionType.DEGRADED, ConditionType.SUSPENDED)
    ended = [entry for entry in conditions if entry["type"] in FINAL and entry["status"] == "True"]
    held = [entry for entry in conditions if entry["reason"] in (RunReason.JOB_SUSPENDED, RunReason.SUSPENDING)]
    steps = [entry for entry in conditions if entry["type"] not in beside]
    missing = [entry for entry in steps if entry["status"] != "True"]
    held_up = [entry for entry in missing if entry["reason"] not in EXPECTED_WHILE_FALSE]
    return next(iter([*ended, *held, *held_up, *missing, *reversed(steps)]), {})


class FileSetReason(StrEnum):
    """Reasons of a FileSet's `Resolved`. Those that a job's `Accepted` has too bear the same word."""

    RESOLVED = "Resolved"
    """True: every file can be read."""
    CONFIG_MAP_NOT_FOUND = "ConfigMapNotFound"
    """The ConfigMap that holds the files is not in the namespace."""
    CONFIG_MAP_KEY_MISSING = "ConfigMapKeyMissing"
    """The ConfigMap lacks a key that the FileSet names."""
    NO_FILES = "NoFiles"
    """The source exists and holds nothing."""
    ACCESS_DENIED = "AccessDenied"
    """The operator's own role lacks the right to read the source."""
    CLAIM_NOT_FOUND = "ClaimNotFound"
    """The claim that holds the files is not in the namespace."""
    NOT_READ_YET = "NotReadYet"
    """Unknown: only pods can read the source, and no job's pod has."""
    STAGING_FAILED = "StagingFailed"
    """The pod of the job in `seenBy` could not read the source, or refused what it found."""
