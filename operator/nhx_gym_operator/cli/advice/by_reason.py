"""What to do about each reason that a job's conditions can have: one entry for each, in the reader's words. Names in
braces are those of `facts`."""

from __future__ import annotations

from collections.abc import Mapping

from ...api.conditions import AcceptedReason, NoticeReason, PodReason, RunReason, SandboxReason, StagedReason

AGAIN = "Then delete the job and apply it again: `kubectl delete aej {job} -n {namespace}`."
_ANEW = (
    "Then apply it again under another name, which collects every rollout anew. Deleting this job deletes its results, "
    "unless their retention is Retain: bring them first, `kubectl nhx download {job} DIR -n {namespace}`."
)
GOES_ON = "The job goes on by itself once that is done."
ASKS_AGAIN = "A job needs room for its pods; it asks again by itself when others have ended."
MISNAMED = (
    "Or, if the job names it wrongly: a spec cannot change, so mend your file, delete the job and apply it again: "
    "`kubectl delete aej {job} -n {namespace}`."
)
ADMINISTRATOR = "This is for whoever looks after the operator on this cluster."
MEASURED = (
    f"{ADMINISTRATOR} What was found is in a ConfigMap of the operator's namespace: `kubectl get configmaps "
    "--all-namespaces -l evals.nhx.io/measurement=sandbox -o yaml`."
)
LOGS = "Read the logs: `kubectl nhx logs {job} -n {namespace}`."
_DOWNLOAD = "Copy the bundle: `kubectl nhx download {job} DIR -n {namespace}`."
_FEWER_CALLS = (
    "What was collected before is scored. Take fewer rows or repeats, bound what an agent may do in a rollout, or "
    "raise spec.limits if the operator's own limits allow it.",
    AGAIN,
)

KEY_REFUSED = (
    "The endpoint refused the key: check the value of key {key} in Secret {secret} (no quotes, no line end, the right "
    "endpoint), and that it may use model {model}.",
    "Try it: {list_models}.",
    AGAIN,
)
NOT_THERE = (
    "The endpoint knows no such path or model: check baseUrl ({base_url}, which usually ends in /v1) and model "
    "({model}). With spec.target.gym.modelType openai_model it must serve /responses; the other model types use "
    "/chat/completions.",
    "See which models it has: {list_models}.",
    AGAIN,
)
UNREACHABLE = (
    "The evaluator does not reach {base_url}: check the address, and whether pods of namespace {namespace} may go out "
    "to it (a NetworkPolicy, a proxy).",
    AGAIN,
)

ADVICE: Mapping[str, tuple[str, ...]] = {
    AcceptedReason.INVALID_SPEC: ("Correct the field that is named above.", AGAIN),
    AcceptedReason.UNKNOWN_BUNDLED_SERVER: (
        "Correct spec.target.gym.resourcesServer, or bring the server's code with spec.target.gym.environment.",
        AGAIN,
    ),
    AcceptedReason.UNKNOWN_BUNDLED_AGENT: (
        "Correct spec.target.gym.agent: it is the component that spec.target.gym.agentRefName is an instance of.",
        AGAIN,
    ),
    AcceptedReason.OTHER_BUNDLED_AGENT: (
        "Set spec.target.gym.agent to the one that is named above, or spec.target.gym.agentRefName to an instance of "
        "the agent that is meant.",
        AGAIN,
    ),
    AcceptedReason.BUNDLED_SERVER_LACKS_DEPENDENCIES: (
        "Bring the server and those packages as an environment of your own (spec.target.gym.environment), or ask for a "
        "gym-host image that holds them.",
        AGAIN,
    ),
    AcceptedReason.SANDBOX_UNAVAILABLE: (
        f"{ADMINISTRATOR} Either what is named above is to be mended, or the chart's value sandbox.mode changed.",
        AGAIN,
    ),
    AcceptedReason.SANDBOX_NOT_MEASURED: (
        "Nothing, for the first minute: the job goes on by itself when the measurement is done.",
        f"If it stays so: {MEASURED}",
    ),
    AcceptedReason.ENVIRONMENT_NEEDS_SANDBOX: (
        f"{ADMINISTRATOR} An environment of your own needs the chart's value sandbox.mode to allow a sandbox.",
        "Or use a bundled resources server, without spec.target.gym.environment.",
    ),
    AcceptedReason.HOSTS_NEED_SANDBOX: (
        f"{ADMINISTRATOR} Several gym hosts need the chart's value sandbox.mode to allow a sandbox.",
        "Or leave spec.hosts out: one pod then runs the whole job.",
        AGAIN,
    ),
    AcceptedReason.FILESET_NOT_FOUND: (
        "Apply the FileSet in namespace {namespace}; `kubectl get filesets -n {namespace}` lists those that are there.",
        GOES_ON,
        MISNAMED,
    ),
    AcceptedReason.FILESET_NOT_RESOLVED: (
        "See what the FileSet lacks: `kubectl describe fileset {fileset} -n {namespace}`.",
        GOES_ON,
    ),
    AcceptedReason.FILESET_WRONG_PURPOSE: (
        "Set the FileSet's spec.purpose to what the job uses it for (environment or dataset).",
        GOES_ON,
    ),
    AcceptedReason.FILESET_FILE_MISSING: (
        "Add the file to the FileSet's source.",
        GOES_ON,
        MISNAMED,
    ),
    AcceptedReason.CONFIG_MAP_NOT_FOUND: (
        "Create the ConfigMap in namespace {namespace}: `kubectl create configmap {config_map} --from-file=KEY=FILE "
        "-n {namespace}`.",
        GOES_ON,
        MISNAMED,
    ),
    AcceptedReason.CONFIG_MAP_KEY_MISSING: (
        "Add the key to the ConfigMap: `kubectl edit configmap {config_map} -n {namespace}`. If a FileSet names it "
        "wrongly, correct the FileSet.",
        GOES_ON,
        MISNAMED,
    ),
    AcceptedReason.SECRET_NOT_FOUND: (
        "Create it: `kubectl create secret generic {secret} --from-file={key}=FILE -n {namespace}`, with the value in "
        "FILE and nothing else.",
        GOES_ON,
        MISNAMED,
    ),
    AcceptedReason.SECRET_KEY_MISSING: (
        "Add the key {key} to Secret {secret}; `kubectl describe secret {secret} -n {namespace}` lists the keys that "
        "it has.",
        GOES_ON,
        MISNAMED,
    ),
    AcceptedReason.CLAIM_NOT_FOUND: (
        "Create the claim in namespace {namespace}.",
        GOES_ON,
        "Or let the job make one, with spec.results.persistentVolumeClaim.size in place of claimName. That takes a "
        "new job: `kubectl delete aej {job} -n {namespace}`, then apply the changed one.",
    ),
    AcceptedReason.INPUTS_TIMEOUT: ("Create what is missing.", AGAIN),
    AcceptedReason.ACCESS_DENIED: (f"{ADMINISTRATOR} Its role lacks the right that is named above.",),
    PodReason.POD_REFUSED: (
        "See the namespace's limits: `kubectl describe resourcequota,limitrange -n {namespace}`.",
        ASKS_AGAIN,
        "If a policy of the cluster refused the pod, the message names it: ask whoever looks after that policy.",
    ),
    PodReason.UNSCHEDULABLE: (
        "The cluster has no node with enough free memory and CPU, or none that the pods may run on. See what is "
        "taken: `kubectl describe nodes`. The job goes on when there is room.",
        "What the pods ask for (resources, nodeSelector, tolerations) is in the chart's values: if no node can ever "
        "fit them, ask whoever looks after the operator.",
    ),
    PodReason.IMAGE_PULL_FAILED: (
        f"{ADMINISTRATOR} Check image.registry and image.tag of the chart, and whether the node reaches the registry.",
    ),
    PodReason.PULL_SECRET_NOT_FOUND: (
        "Create the pull secret in namespace {namespace}: the chart's pods.imagePullSecrets names it.",
        GOES_ON,
    ),
    PodReason.CONTAINER_CONFIG_ERROR: (
        "See the pod's events: `kubectl describe pods -n {namespace} -l evals.nhx.io/job-uid={uid}`.",
    ),
    PodReason.VOLUME_NOT_READY: (
        "See the claim: `kubectl describe pvc -n {namespace}`. A claim stays Pending where its StorageClass does not "
        "exist or has no room; one that another pod uses on another node has to be let go first.",
    ),
    PodReason.NODE_NOT_READY: (
        "See the node: `kubectl get nodes`. If it comes back, the job goes on. If it is gone for good, whoever looks "
        "after the cluster deletes it (`kubectl delete node NODE`): its pods go with it, and are made anew elsewhere.",
    ),
    PodReason.CHILD_NOT_OURS: ("Remove the object that is named above, or apply the job under another name.",),
    PodReason.POD_CHANGED: (
        f"{ADMINISTRATOR} An admission policy changes the sandbox's pods; it has to leave them alone.",
        AGAIN,
    ),
    PodReason.POD_START_TIMEOUT: ("Mend what is named above.", AGAIN),
    StagedReason.STAGING_FAILED: (
        "Correct the environment's files as the message says; what they were: "
        "`kubectl nhx logs {job} --role stage -n {namespace}`.",
        AGAIN,
    ),
    SandboxReason.GATE_FAILED: (
        "See what the gate tried: `kubectl nhx logs {job} --role gate -n {namespace}`.",
        f"{ADMINISTRATOR} Most often the network plugin is slow to apply a policy, or lets no pod reach another.",
    ),
    SandboxReason.SANDBOX_OPEN: (
        f"{ADMINISTRATOR} Pods can reach what they must not: the cluster's network plugin does not enforce "
        "NetworkPolicies, or a policy of the namespace opens the way: `kubectl get networkpolicies -n {namespace}`.",
        AGAIN,
    ),
    SandboxReason.HOST_STARTUP_FAILED: (
        "Gym could not start with this configuration; its last words are above, more of them in "
        "`kubectl nhx logs {job} --role {gym_role} -n {namespace}`. Check agent, agentConfig, agentRefName, "
        "resourcesServer and hydraParams of spec.target.gym.",
        AGAIN,
    ),
    SandboxReason.SOME_HOSTS_READY: (
        "Nothing: the job goes on with the hosts it has, only slower. What the others lack is above; those that were "
        "lost are made again. See their pods: `kubectl get pods -n {namespace} -l evals.nhx.io/role=gym-host`.",
    ),
    SandboxReason.HOST_LOST: (
        "See how the host ended: `kubectl nhx logs {job} --role host -n {namespace}`. Exit code 137 or OOMKilled: it "
        "needs more memory (the chart's resources.gymHost).",
    ),
    SandboxReason.STARTUP_TIMEOUT: (
        "Give Gym more time (spec.target.gym.startupTimeoutSeconds), or see what it waits for: "
        "`kubectl nhx logs {job} --role {gym_role} -n {namespace}`.",
        AGAIN,
    ),
    RunReason.ROLLOUTS_MISSING: (
        "The result stands without them. Why each one failed is in gym_run/rollouts_failures.jsonl of the bundle.",
        _DOWNLOAD,
    ),
    RunReason.AGGREGATES_MISSING: ("The rewards stand; only Gym's own numbers (runner.gym.*) are missing.",),
    RunReason.COVERAGE_TOO_LOW: (
        "Why each rollout failed is in gym_run/rollouts_failures.jsonl of the bundle.",
        _DOWNLOAD,
        "To accept a result with some rollouts missing, set spec.minCoverage below 1 in a new job. The aggregates of "
        "this one are in its status and its bundle all the same.",
        _ANEW,
    ),
    RunReason.DATASET_INVALID: ("Correct what is named above: the row, or the path in the job.", AGAIN),
    AcceptedReason.LIMIT_TOO_HIGH: ("Ask for no more than is allowed, in spec.limits.", AGAIN),
    AcceptedReason.EGRESS_NOT_ALLOWED: (
        "Leave the hosts that are named above out of spec.egress.allow.",
        f"{ADMINISTRATOR} To allow them to jobs, add them to sandbox.egress.allow of the chart.",
        AGAIN,
    ),
    RunReason.TASK_NOT_FOUND: (
        "Correct spec.tasks.taskIds: tasks.jsonl of an earlier run's bundle lists the ids.",
        AGAIN,
    ),
    RunReason.ROLLOUT_LIMIT_EXCEEDED: (
        "Take fewer rows (spec.tasks.limit) or fewer repeats (spec.target.gym.numRepeats), or raise spec.limits if the "
        "operator's own limits allow it.",
        AGAIN,
    ),
    RunReason.TOKEN_LIMIT_REACHED: (
        "What was collected before is scored. Take fewer rows, bound the length of answers, or raise spec.limits if "
        "the operator's own limits allow it.",
        AGAIN,
    ),
    RunReason.CALL_LIMIT_REACHED: _FEWER_CALLS,
    RunReason.MODEL_TIME_LIMIT_REACHED: _FEWER_CALLS,
    RunReason.MODEL_UNAVAILABLE: (
        "Try the endpoint as the evaluator does: {base_url}, model {model}, {with_key}. {list_models}.",
        AGAIN,
    ),
    RunReason.COLLECTION_TIMEOUT: (
        "Raise spec.target.gym.collectionTimeoutSeconds or spec.target.gym.concurrency. What was collected is kept.",
        _ANEW,
    ),
    RunReason.COLLECTION_STALLED: (
        "See what Gym was doing: `kubectl nhx logs {job} --role {gym_role} -n {namespace}`. An environment that works "
        "so long without a model call needs a higher spec.idleTimeoutSeconds. What was collected is kept.",
        _ANEW,
    ),
    RunReason.RESULTS_VOLUME_FULL: (
        "Take a larger volume: spec.results.persistentVolumeClaim.size, or a claim of yours with room.",
        AGAIN,
    ),
    RunReason.EVALUATION_FAILED: (LOGS, AGAIN),
    RunReason.EVALUATOR_RESTARTING: (
        "Nothing needs to be done at first: it goes on where it was. What it logged last: `kubectl nhx logs {job} -n "
        "{namespace}`, and before its end: `kubectl logs -n {namespace} -c agent-evaluate --previous -l "
        "evals.nhx.io/job-uid={uid}`.",
    ),
    RunReason.EVALUATOR_LOST: (
        "Nothing needs to be done while attempts are left: the next one collects only what is missing.",
        "If the job has failed: see how its pods ended, above, and whether nodes went away: `kubectl get nodes`.",
    ),
    RunReason.FAILURE_POLICY: (
        "Mend what is named above: the model, the environment or what its pod lacks. What was collected is kept.",
        "To go on at such a failure, change the rule that is named above, in a new job.",
        _ANEW,
    ),
    RunReason.BACKOFF_LIMIT_EXCEEDED: (
        "See how its pods ended, above, and whether nodes went away: `kubectl get nodes`. OOMKilled: the evaluator "
        "needs more memory (the chart's resources.evaluator, resources.gymTasks). What was collected is kept.",
        "To allow more attempts, raise spec.backoffLimit.",
        _ANEW,
    ),
    RunReason.RESULTS_LOST: (
        "Let the next run keep its results: spec.results.persistentVolumeClaim.size, a claim that nothing else empties "
        "or deletes.",
        AGAIN,
    ),
    NoticeReason.DUPLICATE_ROWS: (
        "To roll a row out several times, state it once and set spec.target.gym.numRepeats.",
    ),
    NoticeReason.ROWS_WITHOUT_PROMPT: (
        "If the agent does not make the prompt itself, prepare the rows with their prompt template first.",
    ),
    NoticeReason.ROWS_UNLIKE_EXAMPLE: (
        "Compare your rows with the example's, which is named above, and add the fields that the verifier reads.",
    ),
    NoticeReason.FAILED_CALLS_UNPLACED: (
        "Mend what the model refused, named above, and run it again: a run without failed calls leaves no doubt.",
        "With spec.target.gym.concurrency: 1 every failed call is told apart, in a sandboxed job.",
    ),
    NoticeReason.ANSWERED_UNDER_ANOTHER_NAME: (
        "If the endpoint does not know the name under this other one, correct spec.models[].model: the result is that "
        "of the model which answered. `answeredAs` in the bundle's provenance.json counts its answers by name.",
    ),
    NoticeReason.ENDPOINT_UNREACHABLE: (
        "If its server is only starting, nothing: this is withdrawn once it answers a call.",
        *UNREACHABLE,
    ),
    NoticeReason.KEY_REFUSED: KEY_REFUSED,
    NoticeReason.ENDPOINT_NOT_FOUND: (
        "If the server lists no models and answers calls, nothing: this is withdrawn once it answers one.",
        *NOT_THERE,
    ),
    RunReason.UPLOAD_FAILED: (
        "Check spec.results.objectStore: endpoint, bucket, and the Secret with its keys. With a claim beside it, the "
        "bundle is still there: `kubectl get pvc -n {namespace}`.",
        AGAIN,
    ),
    RunReason.RESULTS_NOT_FRESH: (
        "Name a claim, a prefix or a bucket that holds no other run's results.",
        AGAIN,
    ),
    RunReason.DEADLINE_EXCEEDED: (
        "Give it more time in spec.activeDeadlineSeconds; of a job that still runs it can be raised. What was "
        "collected is kept.",
        _ANEW,
    ),
    RunReason.STARTING_DEADLINE_EXCEEDED: (
        "Mend what it waited for, or let it wait longer: spec.startingDeadlineSeconds.",
        AGAIN,
    ),
    RunReason.JOB_SUSPENDED: (
        "To let it go on: `kubectl patch aej {job} -n {namespace} --type=merge --patch='spec: {{suspend: false}}'`. It "
        "collects only what is missing.",
    ),
    RunReason.RESULTS_WOULD_BE_LOST: (
        "Let it run to its end, or end it with `kubectl nhx cancel {job} -n {namespace}`. A job that can be suspended "
        "at any time has spec.results.persistentVolumeClaim.",
    ),
    RunReason.CANCELLED: ("Somebody set spec.cancel. To run it again, apply it under another name.",),
}

SELF_EXPLAINED = frozenset(
    {
        AcceptedReason.ACCEPTED,
        PodReason.PODS_CREATED,
        StagedReason.STAGING,
        StagedReason.STAGED,
        SandboxReason.GATE_CHECKING,
        SandboxReason.HOST_STARTING,
        SandboxReason.HOST_READY,
        RunReason.COLLECTING,
        RunReason.SCORING,
        RunReason.UPLOADING,
        RunReason.RUN_ENDED,
        RunReason.ALL_ROLLOUTS_RECORDED,
        RunReason.MIN_COVERAGE_REACHED,
        RunReason.CANCELLING,
        RunReason.SUSPENDING,
        RunReason.READING_OUTCOME,
        RunReason.JOB_RESUMED,
        NoticeReason.MODELS_ANSWER,
    }
)
"""Reasons about which nothing is to be done."""
