"""Names that tie the objects of one job together: the API group, labels, annotations, phases."""

from __future__ import annotations

from enum import StrEnum

GROUP = "evals.nhx.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

JOB_KIND = "AgentEvalJob"
JOB_PLURAL = "agentevaljobs"
JOB_SHORT_NAME = "aej"
FILESET_KIND = "FileSet"
FILESET_PLURAL = "filesets"
CATEGORY = "evals"
"""`kubectl get evals` lists everything of this API group."""

FIELD_MANAGER = "nhx-gym-operator"
"""Owner of every field that the operator applies, and who reports its events."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "nhx-gym-operator"
JOB_CONTROLLER = f"{GROUP}/{MANAGED_BY}"
"""What `spec.managedBy` calls this operator."""
JOB_UID_LABEL = f"{GROUP}/job-uid"
"""A UID is always a valid label value; a job's name need not be one."""
ROLE_LABEL = f"{GROUP}/role"
ATTEMPT_LABEL = f"{GROUP}/attempt"
ORDINAL_LABEL = f"{GROUP}/ordinal"
"""On host pods: which of the job's hosts it is, counted from 0."""
RETAINED_LABEL = f"{GROUP}/retained"
"""On a results claim that outlives its job: `kubectl get pvc --all-namespaces -l evals.nhx.io/retained=true`."""
IMAGE_ANNOTATION = f"{GROUP}/image"
"""Beside it: the image that can read the results, for when nothing else is left of the job to name one."""
JOB_ANNOTATION = f"{GROUP}/job"
"""The job's name in full, for people who look at a child."""

CANARY_LABEL = f"{GROUP}/canary"
"""On canaries and their policies: the name of the ConfigMap that their outcome goes into."""
MEASUREMENT_LABEL = f"{GROUP}/measurement"
MEASUREMENT_OF_SANDBOX = "sandbox"
"""On that ConfigMap: `kubectl get configmaps --all-namespaces -l evals.nhx.io/measurement=sandbox`."""
SUBJECT_ANNOTATION = f"{GROUP}/measured"
"""On canaries: a digest of the settings that they measure."""

CONTAINER_STAGE = "stage-environment"
CONTAINER_STAGE_DATASET = "stage-dataset"
STAGE_CONTAINERS = (CONTAINER_STAGE, CONTAINER_STAGE_DATASET)
CONTAINER_EVALUATE = "agent-evaluate"
CONTAINER_GATE = "sandbox-gate"
CONTAINER_HOST = "gym-host"
CONTAINER_OUTCOME = "read-outcome"
"""Containers of a job's pods. People name them to `kubectl logs`, so they stay as they are."""
CONTAINER_LISTEN = "canary-listen"
CONTAINER_REACH = "canary-reach"
CONTAINER_REFUSED = "canary-refused"
"""Containers of the canaries: of the listener, and of the client in their order."""

CLAIM_LOCATION = "persistentVolumeClaim/"
"""How `status.results.location` begins where a claim keeps the results; its name follows."""

BUCKET_LOCATION = "s3://"
"""How it begins once the bundle is in a bucket; bucket and prefix follow."""

POLICY_MODEL = "policy"
"""The entry of `spec.models` that the agent under evaluation speaks to."""
MAX_HOSTS = 16
"""More Gym than one evaluator keeps busy: a host runs some hundred quick rollouts a second, and of slow ones as many at
once as it has memory for."""
MAX_RETRIES = 10
"""Of one failed rollout: each costs what the first try did."""


class Role(StrEnum):
    """Value of `ROLE_LABEL` on the operator's pods."""

    EVALUATOR = "evaluator"
    GYM_HOST = "gym-host"
    COLOCATED = "colocated"
    OUTCOME_READER = "outcome-reader"
    CANARY_LISTENER = "canary-listener"
    CANARY_CLIENT = "canary-client"


class Phase(StrEnum):
    """One word for people; computed from conditions and never read back."""

    PENDING = "Pending"
    STAGING = "Staging"
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class Placement(StrEnum):
    """Whether a job's Gym runs in a pod of its own, or in the evaluator's."""

    SANDBOXED = "Sandboxed"
    COLOCATED = "Colocated"


class Isolation(StrEnum):
    """What stands between environment code and the node."""

    KERNEL = "Kernel"
    """A kernel of its own, by the configured RuntimeClass."""
    CONTAINER_ONLY = "ContainerOnly"
    """The node's kernel; container and network policies are the only fence."""
