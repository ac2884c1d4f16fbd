"""What to do about each reason that a job's conditions can have: one entry for each, in the reader's words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..api.conditions import AcceptedReason, NoticeReason, PodReason, RunReason, SandboxReason, StagedReason
from ..api.constants import JOB_CONTROLLER, POLICY_MODEL, Placement
from ..client.jobs import Body, Job
from . import local_files

_AGAIN = "Then delete the job and apply it again: `kubectl delete aej {job} -n {namespace}`."
_ANEW = (
    "Then apply it again under another name, which collects every rollout anew. Deleting this job deletes its results, "
    "unless their retention is Retain: bring them first, `kubectl nhx download {job} DIR -n {namespace}`."
)
_GOES_ON = "The job goes on by itself once that is done."
_MISNAMED = (
    "Or, if the job names it wrongly: a spec cannot change, so mend your file, delete the job and apply it again: "
    "`kubectl delete aej {job} -n {namespace}`."
)
_ADMINISTRATOR = "This is for whoever looks after the operator on this cluster."
_MEASURED = (
    f"{_ADMINISTRATOR} What was found is in a ConfigMap of the operator's namespace: `kubectl get configmaps "
    "--all-namespaces -l evals.nhx.io/measurement=sandbox -o yaml`."
)
_LOGS = "Read the logs: `kubectl nhx logs {job} -n {namespace}`."
_DOWNLOAD = "Copy the bundle: `kubectl nhx download {job} DIR -n {namespace}`."
_FEWER_CALLS = (
    "What was collected before is scored. Take fewer rows or repeats, bound what an agent may do in a rollout, or "
    "raise spec.limits if the operator's own limits allow it.",
    _AGAIN,
)

_KEY_REFUSED = (
    "The endpoint refused the key: check the value of key {key} in Secret {secret} (no quotes, no line end, the right "
    "endpoint), and that it may use model {model}.",
    "Try it: {list_models}.",
    _AGAIN,
)
_KEY_WANTED = (
    "The endpoint wants a key, and the job has none for it: put the key into a Secret (`kubectl create secret generic "
    "NAME --from-file=api-key=FILE -n {namespace}`) and name that in spec.models[].apiKey.secretKeyRef. Or the "
    "endpoint refuses callers from this cluster, or model {model}.",
    _AGAIN,
)
_NOT_THERE = (
    "The endpoint knows no such path or model: check baseUrl ({base_url}, which usually ends in /v1) and model "
    "({model}). With spec.target.gym.modelType openai_model it must serve /responses; the other model types use "
    "/chat/completions.",
    "See which models it has: {list_models}.",
    _AGAIN,
)
_DISTRUSTED = (
    "The evaluator does not trust the certificate of {base_url}: it is signed by an authority that the image does not "
    "know, has expired, or is another host's. See it: `curl -v {base_url}/models`. For a private "
    "authority, put its certificate into a ConfigMap of namespace {namespace} and name it in the model's certificates.",
    _AGAIN,
)
_UNREACHABLE = (
    "The evaluator does not reach {base_url}: check the address, and whether pods of namespace {namespace} may go out "
    "to it (a NetworkPolicy, a proxy).",
    _AGAIN,
)

ADVICE: Mapping[str, tuple[str, ...]] = {
    AcceptedReason.INVALID_SPEC: ("Correct the field that is named above.", _AGAIN),
    AcceptedReason.UNKNOWN_BUNDLED_SERVER: (
        "Correct spec.target.gym.resourcesServer, or bring the server's code with spec.target.gym.environment.",
        _AGAIN,
    ),
    AcceptedReason.UNKNOWN_BUNDLED_AGENT: (
        "Correct spec.target.gym.agent: it is the component that spec.target.gym.agentRefName is an instance of.",
        _AGAIN,
    ),
    AcceptedReason.BUNDLED_SERVER_LACKS_DEPENDENCIES: (
        "Bring the server and those packages as an environment of your own (spec.target.gym.environment), or ask for a "
        "gym-host image that holds them.",
        _AGAIN,
    ),
    AcceptedReason.SANDBOX_UNAVAILABLE: (
        f"{_ADMINISTRATOR} Either what is named above is to be mended, or the chart's value sandbox.mode changed.",
        _AGAIN,
    ),
    AcceptedReason.SANDBOX_NOT_MEASURED: (
        "Nothing, for the first minute: the job goes on by itself when the measurement is done.",
        f"If it stays so: {_MEASURED}",
    ),
    AcceptedReason.ENVIRONMENT_NEEDS_SANDBOX: (
        f"{_ADMINISTRATOR} An environment of your own needs the chart's value sandbox.mode to allow a sandbox.",
        "Or use a bundled resources server, without spec.target.gym.environment.",
    ),
    AcceptedReason.HOSTS_NEED_SANDBOX: (
        f"{_ADMINISTRATOR} Several gym hosts need the chart's value sandbox.mode to allow a sandbox.",
        "Or leave spec.hosts out: one pod then runs the whole job.",
        _AGAIN,
    ),
    AcceptedReason.FILESET_NOT_FOUND: (
        "Apply the FileSet in namespace {namespace}; `kubectl get filesets -n {namespace}` lists those that are there.",
        _GOES_ON,
        _MISNAMED,
    ),
    AcceptedReason.FILESET_NOT_RESOLVED: (
        "See what the FileSet lacks: `kubectl describe fileset {fileset} -n {namespace}`.",
        _GOES_ON,
    ),
    AcceptedReason.FILESET_WRONG_PURPOSE: (
        "Set the FileSet's spec.purpose to what the job uses it for (environment or dataset).",
        _GOES_ON,
    ),
    AcceptedReason.FILESET_FILE_MISSING: (
        "Add the file to the FileSet's source.",
        _GOES_ON,
        _MISNAMED,
    ),
    AcceptedReason.CONFIG_MAP_NOT_FOUND: (
        "Create the ConfigMap in namespace {namespace}: `kubectl create configmap {config_map} --from-file=KEY=FILE "
        "-n {namespace}`.",
        _GOES_ON,
        _MISNAMED,
    ),
    AcceptedReason.CONFIG_MAP_KEY_MISSING: (
        "Add the key to the ConfigMap: `kubectl edit configmap {config_map} -n {namespace}`. If a FileSet names it "
        "wrongly, correct the FileSet.",
        _GOES_ON,
        _MISNAMED,
    ),
    AcceptedReason.SECRET_NOT_FOUND: (
        "Create it: `kubectl create secret generic {secret} --from-file={key}=FILE -n {namespace}`, with the value in "
        "FILE and nothing else.",
        _GOES_ON,
        _MISNAMED,
    ),
    AcceptedReason.SECRET_KEY_MISSING: (
        "Add the key {key} to Secret {secret}; `kubectl describe secret {secret} -n {namespace}` lists the keys that "
        "it has.",
        _GOES_ON,
        _MISNAMED,
    ),
    AcceptedReason.CLAIM_NOT_FOUND: (
        "Create the claim in namespace {namespace}.",
        _GOES_ON,
        "Or let the job make one, with spec.results.persistentVolumeClaim.size in place of claimName. That takes a "
        "new job: `kubectl delete aej {job} -n {namespace}`, then apply the changed one.",
    ),
    AcceptedReason.INPUTS_TIMEOUT: ("Create what is missing.", _AGAIN),
    AcceptedReason.ACCESS_DENIED: (f"{_ADMINISTRATOR} Its role lacks the right that is named above.",),
    PodReason.POD_REFUSED: (
        "See the namespace's limits: `kubectl describe resourcequota,limitrange -n {namespace}`. A job needs room for "
        "its pods; it asks again by itself when others have ended.",
        "If a policy of the cluster refused the pod, the message names it: ask whoever looks after that policy.",
    ),
    PodReason.UNSCHEDULABLE: (
        "The cluster has no node with enough free memory and CPU, or none that the pods may run on. See what is "
        "taken: `kubectl describe nodes`. The job goes on when there is room.",
        "What the pods ask for (resources, nodeSelector, tolerations) is in the chart's values: if no node can ever "
        "fit them, ask whoever looks after the operator.",
    ),
    PodReason.IMAGE_PULL_FAILED: (
        f"{_ADMINISTRATOR} Check image.registry and image.tag of the chart, and whether the node reaches the registry.",
    ),
    PodReason.PULL_SECRET_NOT_FOUND: (
        "Create the pull secret in namespace {namespace}: the chart's pods.imagePullSecrets names it.",
        _GOES_ON,
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
        f"{_ADMINISTRATOR} An admission policy changes the sandbox's pods; it has to leave them alone.",
        _AGAIN,
    ),
    PodReason.POD_START_TIMEOUT: ("Mend what is named above.", _AGAIN),
    StagedReason.STAGING_FAILED: (
        "Correct the environment's files as the message says; what they were: "
        "`kubectl nhx logs {job} --role stage -n {namespace}`.",
        _AGAIN,
    ),
    SandboxReason.GATE_FAILED: (
        "See what the gate tried: `kubectl nhx logs {job} --role gate -n {namespace}`.",
        f"{_ADMINISTRATOR} Most often the network plugin is slow to apply a policy, or lets no pod reach another.",
    ),
    SandboxReason.SANDBOX_OPEN: (
        f"{_ADMINISTRATOR} Pods can reach what they must not: the cluster's network plugin does not enforce "
        "NetworkPolicies, or a policy of the namespace opens the way: `kubectl get networkpolicies -n {namespace}`.",
        _AGAIN,
    ),
    SandboxReason.HOST_STARTUP_FAILED: (
        "Gym could not start with this configuration; its last words are above, more of them in "
        "`kubectl nhx logs {job} --role {gym_role} -n {namespace}`. Check agent, agentConfig, agentRefName, "
        "resourcesServer and hydraParams of spec.target.gym.",
        _AGAIN,
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
        _AGAIN,
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
    RunReason.DATASET_INVALID: ("Correct what is named above: the row, or the path in the job.", _AGAIN),
    AcceptedReason.LIMIT_TOO_HIGH: ("Ask for no more than is allowed, in spec.limits.", _AGAIN),
    AcceptedReason.EGRESS_NOT_ALLOWED: (
        "Leave the hosts that are named above out of spec.egress.allow.",
        f"{_ADMINISTRATOR} To allow them to jobs, add them to sandbox.egress.allow of the chart.",
        _AGAIN,
    ),
    RunReason.TASK_NOT_FOUND: (
        "Correct spec.tasks.taskIds: tasks.jsonl of an earlier run's bundle lists the ids.",
        _AGAIN,
    ),
    RunReason.ROLLOUT_LIMIT_EXCEEDED: (
        "Take fewer rows (spec.tasks.limit) or fewer repeats (spec.target.gym.numRepeats), or raise spec.limits if the "
        "operator's own limits allow it.",
        _AGAIN,
    ),
    RunReason.TOKEN_LIMIT_REACHED: (
        "What was collected before is scored. Take fewer rows, bound the length of answers, or raise spec.limits if "
        "the operator's own limits allow it.",
        _AGAIN,
    ),
    RunReason.CALL_LIMIT_REACHED: _FEWER_CALLS,
    RunReason.MODEL_TIME_LIMIT_REACHED: _FEWER_CALLS,
    RunReason.MODEL_UNAVAILABLE: (
        "Try the endpoint as the evaluator does: {base_url}, model {model}, {with_key}. {list_models}.",
        _AGAIN,
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
        _AGAIN,
    ),
    RunReason.EVALUATION_FAILED: (_LOGS, _AGAIN),
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
        _AGAIN,
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
        *_UNREACHABLE,
    ),
    NoticeReason.KEY_REFUSED: _KEY_REFUSED,
    NoticeReason.ENDPOINT_NOT_FOUND: (
        "If the server lists no models and answers calls, nothing: this is withdrawn once it answers one.",
        *_NOT_THERE,
    ),
    RunReason.UPLOAD_FAILED: (
        "Check spec.results.objectStore: endpoint, bucket, and the Secret with its keys. With a claim beside it, the "
        "bundle is still there: `kubectl get pvc -n {namespace}`.",
        _AGAIN,
    ),
    RunReason.RESULTS_NOT_FRESH: (
        "Name a claim, a prefix or a bucket that holds no other run's results.",
        _AGAIN,
    ),
    RunReason.DEADLINE_EXCEEDED: (
        "Give it more time in spec.activeDeadlineSeconds; of a job that still runs it can be raised. What was "
        "collected is kept.",
        _ANEW,
    ),
    RunReason.STARTING_DEADLINE_EXCEEDED: (
        "Mend what it waited for, or let it wait longer: spec.startingDeadlineSeconds.",
        _AGAIN,
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

_TOO_MANY = (
    "The endpoint is overloaded or limits its callers: lower spec.target.gym.concurrency, or the model's "
    "maxConcurrentCalls.",
    _AGAIN,
)
_NODE_TOO_BUSY = (
    "The node was too busy for Gym to start: Ray waits for its own processes only so long. Run fewer jobs at once, or "
    "ask whoever looks after the operator to give Gym's pods more CPU (resources.gymHost, resources.gymTasks).",
    _AGAIN,
)
_NO_SUCH_BUNDLED = (
    "Correct the path in spec.tasks.dataset.bundled; it is one inside NeMo Gym, such as "
    "resources_servers/mcqa/data/example.jsonl.",
    _AGAIN,
)
_ROW_OF_CONFIG_MAP = (
    "Correct the row in your file, and put the file into the ConfigMap again: `kubectl create configmap {dataset} "
    "--from-file={dataset_key}=FILE -n {namespace} --dry-run=client -o yaml | kubectl apply -f -`.",
    _AGAIN,
)
_ROW_OF_PLUGIN = (
    "Correct the row in your file and delete the job, with which its copy of the rows goes: `kubectl delete aej {job} "
    "-n {namespace}`. Then submit it again.",
)
_ROW_WORDS = re.compile(r", line \d+: ")
_ENVIRONMENT_FAILED = (
    "The environment's own code failed, not the job's settings: correct the files of FileSet {environment}. A package "
    "that it imports and the image lacks goes into its requirements.txt. The traceback: "
    "`kubectl nhx logs {job} --role {gym_role} -n {namespace}`.",
    _AGAIN,
)
_CODE_WORDS = re.compile(r"\b(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError|NameError)\b")
_NO_REWARD = (
    "What the rollouts met is quoted above. Where the environment's code failed, its traceback is in Gym's log: "
    "`kubectl nhx logs {job} --role {gym_role} -n {namespace}`.",
    _AGAIN,
)
"""For a run of which no rollout has a reward: no lower `minCoverage` would have let it pass."""
_BUSY_WORDS = re.compile(r"timed out during startup|GCS has become overloaded|raylet")
_MODEL_WORDS = (
    (re.compile(r"HTTP 40[13]\b"), _KEY_REFUSED),
    (re.compile(r"HTTP 404\b"), _NOT_THERE),
    (re.compile(r"HTTP (429|503)\b"), _TOO_MANY),
    (re.compile(r"certificate", re.IGNORECASE), _DISTRUSTED),
    (re.compile(r"connect|resolve|name or service|unreachable|refused", re.IGNORECASE), _UNREACHABLE),
)
"""What a failed call's own words mean, as the gateway gives them; the first that fits."""

_ENDS = (
    "Or end the job, which keeps what was recorded: `kubectl nhx cancel {job} -n {namespace}`. By itself it ends when "
    "what is said above is over."
)
_SILENT = (
    (
        re.compile(r"answered no call"),
        ("Try the endpoint as the evaluator does: {base_url}, model {model}, {with_key}. {list_models}.", _ENDS),
    ),
    (
        re.compile(r"gym host \d+ has not answered"),
        (
            "See the host: `kubectl nhx logs {job} --role host -n {namespace}`, and whether its node is at its limits: "
            "`kubectl describe nodes`. After two minutes of silence it is lost, and what it had in hand is sent again.",
            "To have another one at once, delete its pod: `kubectl delete pods -n {namespace} -l "
            "evals.nhx.io/job-uid={uid},evals.nhx.io/role=gym-host`. Nothing that was recorded is lost.",
        ),
    ),
    (
        re.compile(r"no rollout has ended"),
        ("See what Gym is doing: `kubectl nhx logs {job} --role {gym_role} -n {namespace}`.", _ENDS),
    ),
)
"""What to do about a silence, which is no reason of its own: much is slow and comes in the end."""

UNSEEN = (
    "No operator has looked at this job. Is one running, and does it serve namespace {namespace}? "
    "`kubectl get deployments --all-namespaces -l app.kubernetes.io/name=nhx-gym-operator` shows them; the chart's "
    "watchNamespaces says which namespaces one serves.",
)
MANAGED = ("The job is looked after by {managed_by} (spec.managedBy); the operator of this project leaves it alone.",)
UNKNOWN = (_LOGS,)
"""For a reason that a newer operator gives."""

_MODEL = re.compile(r"model (?P<name>\S+?)(?: (?:has )?answered no call|'s endpoint )")
_SECRET = re.compile(r"Secret '(?P<name>[^']+)'(?: has no key '(?P<key>[^']+)')?")
_CONFIG_MAP = re.compile(r"ConfigMap '(?P<name>[^']+)'")
_FILESET = re.compile(r"FileSet '(?P<name>[^']+)'")


def advice(job: Job, cause: Body, errors: str = "") -> list[str]:
    """What to do about the condition `cause`; nothing if the job is on its way or all is well. `errors` are exceptions
    from the logs, which a message may be too short for."""
    if not job.conditions:
        managed = (job.body.get("spec") or {}).get("managedBy") not in (None, JOB_CONTROLLER)
        return _filled(MANAGED if managed else UNSEEN, job, cause)
    reason, message = cause.get("reason", ""), cause.get("message", "")
    if reason == RunReason.COLLECTING:
        return _filled(next((lines for words, lines in _SILENT if words.search(message)), ()), job, cause)
    if not reason or reason in SELF_EXPLAINED:
        return []
    found = ADVICE.get(reason, UNKNOWN)
    if reason == RunReason.MODEL_UNAVAILABLE:
        found = next((better for words, better in _MODEL_WORDS if words.search(message)), found)
    if reason == AcceptedReason.SANDBOX_UNAVAILABLE and not job.finished:
        found = (*(line for line in found if line != _AGAIN), _GOES_ON)
    if reason == AcceptedReason.SANDBOX_NOT_MEASURED and job.finished:
        found = (_MEASURED, _AGAIN)
    if found is _KEY_REFUSED and "secretKeyRef" not in (_model_of(job, message).get("apiKey") or {}):
        found = _KEY_WANTED
    if reason == SandboxReason.HOST_STARTUP_FAILED and _BUSY_WORDS.search(message):
        found = _NODE_TOO_BUSY
    elif (
        reason == SandboxReason.HOST_STARTUP_FAILED
        and _environment_of(job)
        and _CODE_WORDS.search(f"{message}\n{errors}")
    ):
        found = _ENVIRONMENT_FAILED
    if reason == RunReason.DATASET_INVALID:
        found = _of_dataset(job, message, found)
    if reason == RunReason.COVERAGE_TOO_LOW and message.startswith("0 of "):
        found = _NO_REWARD
    if reason in (AcceptedReason.INPUTS_TIMEOUT, PodReason.POD_START_TIMEOUT):
        found = (*_of_what_was_waited_for(message), _AGAIN)
    return _filled(found, job, cause)


def _of_what_was_waited_for(message: str) -> tuple[str, ...]:
    """A deadline's condition repeats what was wrong; its reason is only that time is up."""
    reason = next((reason for words, reason in _WAITED_FOR if words.search(message)), None)
    return tuple(line for line in ADVICE.get(reason or "", ()) if line not in (_GOES_ON, _MISNAMED)) or (
        "Mend what is named above.",
    )


def _of_dataset(job: Job, message: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    if message.startswith("no bundled dataset"):
        return _NO_SUCH_BUNDLED
    config_map = _config_map_of_dataset(job).get("name")
    if not config_map or not _ROW_WORDS.search(message):
        return otherwise
    return _ROW_OF_PLUGIN if config_map == local_files.rows_name(job.name) else _ROW_OF_CONFIG_MAP


_WAITED_FOR = (
    (re.compile(r"Secret '[^']+' has no key"), AcceptedReason.SECRET_KEY_MISSING),
    (re.compile(r"Secret '[^']+' does not exist"), AcceptedReason.SECRET_NOT_FOUND),
    (re.compile(r"FileSet '[^']+' does not exist"), AcceptedReason.FILESET_NOT_FOUND),
    (re.compile(r"ConfigMap '[^']+' does not exist"), AcceptedReason.CONFIG_MAP_NOT_FOUND),
    (re.compile(r"ConfigMap '[^']+'.* has no key"), AcceptedReason.CONFIG_MAP_KEY_MISSING),
    (re.compile(r"PersistentVolumeClaim '[^']+' does not exist"), AcceptedReason.CLAIM_NOT_FOUND),
    (re.compile(r"FileSet '[^']+' has no file"), AcceptedReason.FILESET_FILE_MISSING),
    (re.compile(r"FileSet '[^']+' has purpose"), AcceptedReason.FILESET_WRONG_PURPOSE),
    (re.compile(r"FileSet '[^']+' is (empty|not one that)"), AcceptedReason.FILESET_NOT_RESOLVED),
    (re.compile(r"the operator may not"), AcceptedReason.ACCESS_DENIED),
    (re.compile(r"finds no node"), PodReason.UNSCHEDULABLE),
    (re.compile(r"a pull secret is missing"), PodReason.PULL_SECRET_NOT_FOUND),
    (re.compile(r"cannot pull the image"), PodReason.IMAGE_PULL_FAILED),
    (re.compile(r"waits for a volume"), PodReason.VOLUME_NOT_READY),
    (re.compile(r"cannot be made"), PodReason.CONTAINER_CONFIG_ERROR),
)


def _filled(lines: tuple[str, ...], job: Job, cause: Body) -> list[str]:
    facts = _facts(job, cause.get("message", ""))
    return [line.format_map(facts) for line in lines]


def _facts(job: Job, message: str) -> dict[str, str]:
    spec = job.body.get("spec") or {}
    model = _model_of(job, message)
    reference = (model.get("apiKey") or {}).get("secretKeyRef") or {}
    named = _SECRET.search(message)
    secret = named["name"] if named else reference.get("name", "?")
    fileset, config_map = _FILESET.search(message), _CONFIG_MAP.search(message)
    base_url = model.get("baseUrl", "?").rstrip("/")
    return {
        "job": job.name,
        "namespace": job.namespace,
        "uid": job.uid,
        "managed_by": spec.get("managedBy", "?"),
        "gym_role": "evaluator" if job.status.get("placement") == Placement.COLOCATED else "host",
        "base_url": base_url,
        "list_models": _listing_of_models(base_url, reference, job.namespace),
        "model": model.get("model", "?"),
        "secret": secret,
        "key": (named and named["key"]) or _key_of(spec, secret),
        "with_key": "key {key} of Secret {name}".format_map(reference) if reference else "without a key",
        "environment": _environment_of(job),
        "dataset": _config_map_of_dataset(job).get("name", "NAME"),
        "dataset_key": _config_map_of_dataset(job).get("key", "KEY"),
        "fileset": fileset["name"] if fileset else "NAME",
        "config_map": config_map["name"] if config_map else "NAME",
    }


def _listing_of_models(base_url: str, reference: Body, namespace: str) -> str:
    """The command that asks the endpoint for its models as the evaluator would, with the key where there is one."""
    if not reference:
        return f"`curl {base_url}/models`"
    # By standard input: a key on a command line is shown to everybody on the machine, and kept in the shell's history.
    key = f'{{{{index .data "{reference["key"]}" | base64decode}}}}'
    header = f'header = "Authorization: Bearer {key}"'
    return (
        f"`kubectl get secret {reference['name']} -n {namespace} -o go-template='{header}' | "
        f"curl --config - {base_url}/models` (with the key, which stays off the command line; it takes the right to "
        "read that Secret)"
    )


def _environment_of(job: Job) -> str:
    """The FileSet with the job's own environment, or an empty string."""
    gym = ((job.body.get("spec") or {}).get("target") or {}).get("gym") or {}
    return ((gym.get("environment") or {}).get("fileSet") or {}).get("name", "")


def _config_map_of_dataset(job: Job) -> Body:
    tasks = (job.body.get("spec") or {}).get("tasks") or {}
    return (tasks.get("dataset") or tasks.get("taskset") or {}).get("configMap") or {}


def _model_of(job: Job, message: str) -> Body:
    """The entry of `spec.models` that a message is about, or the policy's."""
    about = _MODEL.search(message)
    wanted = about["name"] if about else POLICY_MODEL
    models = (job.body.get("spec") or {}).get("models") or []
    return next((model for model in models if model.get("name") == wanted), {})


def _key_of(spec: Body, secret: str) -> str:
    """The key that the job wants of that Secret, wherever it names it."""
    gym = (spec.get("target") or {}).get("gym") or {}
    values = [model.get("apiKey") for model in spec.get("models") or []] + list((gym.get("envSecrets") or {}).values())
    references = [(value or {}).get("secretKeyRef") or {} for value in values]
    return next((reference["key"] for reference in references if reference.get("name") == secret), "KEY")
