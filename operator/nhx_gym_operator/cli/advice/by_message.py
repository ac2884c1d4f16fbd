"""What a condition's message says beyond its reason, and what to do then."""

from __future__ import annotations

import re

from ...api.conditions import AcceptedReason, PodReason, RunReason, SandboxReason
from ...api.gym_start import NODE_TOO_BUSY, TOO_BUSY
from ...client.jobs import Job
from .. import local_files
from .by_reason import (
    ADMINISTRATOR,
    ADVICE,
    AGAIN,
    ASKS_AGAIN,
    GOES_ON,
    KEY_REFUSED,
    LOGS,
    MEASURED,
    MISNAMED,
    NOT_THERE,
    SELF_EXPLAINED,
    UNREACHABLE,
)
from .facts import config_map_of_dataset, environment_of, model_of

UNKNOWN = (LOGS,)
"""For a reason that a newer operator gives."""
_KEY_WANTED = (
    "The endpoint wants a key, and the job has none for it: put the key into a Secret (`kubectl create secret generic "
    "NAME --from-file=api-key=FILE -n {namespace}`) and name that in spec.models[].apiKey.secretKeyRef. Or the "
    "endpoint refuses callers from this cluster, or model {model}.",
    AGAIN,
)
_DISTRUSTED = (
    "The evaluator does not trust the certificate of {base_url}: it is signed by an authority that the image does not "
    "know, has expired, or is another host's. See it: `curl -v {base_url}/models`. For a private "
    "authority, put its certificate into a ConfigMap of namespace {namespace} and name it in the model's certificates.",
    AGAIN,
)
_TOO_MANY = (
    "The endpoint is overloaded or limits its callers: lower spec.target.gym.concurrency, or the model's "
    "maxConcurrentCalls.",
    AGAIN,
)
_NODE_TOO_BUSY = (
    "The node was too busy for Gym to start: Ray waits for its own processes only so long. Run fewer jobs at once, or "
    "ask whoever looks after the operator to give Gym's pods more CPU (resources.gymHost, resources.gymTasks).",
    AGAIN,
)
_NO_SUCH_BUNDLED = (
    "Correct the path in spec.tasks.dataset.bundled; it is one inside NeMo Gym, such as "
    "resources_servers/mcqa/data/example.jsonl.",
    AGAIN,
)
_ROW_OF_CONFIG_MAP = (
    "Correct the row in your file, and put the file into the ConfigMap again: `kubectl create configmap {dataset} "
    "--from-file={dataset_key}=FILE -n {namespace} --dry-run=client -o yaml | kubectl apply -f -`.",
    AGAIN,
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
    AGAIN,
)
_CODE_WORDS = re.compile(r"\b(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError|NameError)\b")
_NO_REWARD = (
    "What the rollouts met is quoted above. Where the environment's code failed, its traceback is in Gym's log: "
    "`kubectl nhx logs {job} --role {gym_role} -n {namespace}`.",
    AGAIN,
)
"""For a run of which no rollout has a reward: no lower `minCoverage` would have let it pass."""
_BUSY_WORDS = re.compile(f"{TOO_BUSY}|{NODE_TOO_BUSY.pattern}|raylet")
_MODEL_WORDS = (
    (re.compile(r"HTTP 40[13]\b"), KEY_REFUSED),
    (re.compile(r"HTTP 404\b"), NOT_THERE),
    (re.compile(r"HTTP (429|503)\b"), _TOO_MANY),
    (re.compile(r"certificate", re.IGNORECASE), _DISTRUSTED),
    (re.compile(r"connect|resolve|name or service|unreachable|refused", re.IGNORECASE), UNREACHABLE),
)
"""What a failed call's own words mean, as the gateway gives them; the first that fits."""
_ENDS = (
    "Or end the job, which keeps what was recorded: `kubectl nhx cancel {job} -n {namespace}`. By itself it ends when "
    "what is said above is over."
)
_ATTEMPTS_FOLLOW = "Until then attempts follow each other; what was collected is kept."
_POD_WORDS = (
    (re.compile(r"PersistentVolumeClaim", re.IGNORECASE), ADVICE[PodReason.VOLUME_NOT_READY]),
    (
        re.compile(r"OOMKilled"),
        (
            f"{ADMINISTRATOR} The evaluator needs more memory: the chart's resources.evaluator, for a colocated job "
            "resources.gymTasks.",
            _ATTEMPTS_FOLLOW,
        ),
    ),
    (re.compile(TOO_BUSY), (_NODE_TOO_BUSY[0], _ATTEMPTS_FOLLOW)),
    (
        re.compile(r"StartError|ContainerCannotRun"),
        (
            f"{ADMINISTRATOR} An image of the chart's images does not have what it is started with: it is none of "
            "this project's, nor made from one.",
        ),
    ),
    (re.compile(r"does not say that it has ended|has not reported"), ADVICE[PodReason.NODE_NOT_READY]),
)
"""What a pod's trouble is, by the words of whoever saw it, where its reason has several causes."""
_NO_ADDRESS = (
    f"{ADMINISTRATOR} The cluster has no address left for another Service (a sandboxed job has one): delete Services "
    "that nobody needs (`kubectl get services --all-namespaces`), or enlarge the cluster's range by a ServiceCIDR.",
    GOES_ON,
)
_SILENT = (
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
        re.compile(r"answered no call"),
        ("Try the endpoint as the evaluator does: {base_url}, model {model}, {with_key}. {list_models}.", _ENDS),
    ),
    (
        re.compile(r"runs and does not answer the operator"),
        (
            "See what it is doing: `kubectl nhx logs {job} -n {namespace}`. It may be at work all the same.",
            f"{ADMINISTRATOR} The chart's `images` name images of this project, and no network policy keeps the "
            "operator from port 8080 of the pods.",
        ),
    ),
    (
        re.compile(r"no rollout has ended"),
        ("See what Gym is doing: `kubectl nhx logs {job} --role {gym_role} -n {namespace}`.", _ENDS),
    ),
)
"""What to do about a silence, which is no reason of its own: much is slow and comes in the end. Through a host that
is silent no call comes to a model."""
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


def lines_for(job: Job, reason: str, message: str, errors: str) -> tuple[str, ...]:
    """What to do, with the names of `facts` still in braces; nothing if the job is on its way or all is well."""
    if reason in (RunReason.COLLECTING, RunReason.SCORING, RunReason.UPLOADING, PodReason.PODS_CREATED):
        return next((lines for words, lines in _SILENT if words.search(message)), ())
    if not reason or reason in SELF_EXPLAINED:
        return ()
    found = ADVICE.get(reason, UNKNOWN)
    if reason == RunReason.MODEL_UNAVAILABLE:
        found = next((better for words, better in _MODEL_WORDS if words.search(message)), found)
    if reason in (PodReason.UNSCHEDULABLE, RunReason.EVALUATOR_RESTARTING, RunReason.EVALUATOR_LOST):
        found = next((better for words, better in _POD_WORDS if words.search(message)), found)
    if reason == AcceptedReason.SANDBOX_UNAVAILABLE and not job.finished:
        found = (*(line for line in found if line != AGAIN), GOES_ON)
    if reason == AcceptedReason.SANDBOX_NOT_MEASURED and job.finished:
        found = (MEASURED, AGAIN)
    if reason == PodReason.POD_REFUSED:
        found = _NO_ADDRESS if "range is full" in message else found
        if job.finished:
            found = (*(line for line in found if line not in (ASKS_AGAIN, GOES_ON)), AGAIN)
    if found is KEY_REFUSED and "secretKeyRef" not in (model_of(job, message).get("apiKey") or {}):
        found = _KEY_WANTED
    if reason in (SandboxReason.HOST_STARTUP_FAILED, RunReason.BACKOFF_LIMIT_EXCEEDED) and _BUSY_WORDS.search(message):
        found = _NODE_TOO_BUSY
    elif (
        reason == SandboxReason.HOST_STARTUP_FAILED
        and environment_of(job)
        and _CODE_WORDS.search(f"{message}\n{errors}")
    ):
        found = _ENVIRONMENT_FAILED
    if reason == RunReason.DATASET_INVALID:
        found = _of_dataset(job, message, found)
    if reason == RunReason.COVERAGE_TOO_LOW and message.startswith("0 of "):
        found = _NO_REWARD
    if reason in (AcceptedReason.INPUTS_TIMEOUT, PodReason.POD_START_TIMEOUT):
        found = (*_of_what_was_waited_for(message), AGAIN)
    return found


def _of_what_was_waited_for(message: str) -> tuple[str, ...]:
    """A deadline's condition repeats what was wrong; its reason is only that time is up."""
    reason = next((reason for words, reason in _WAITED_FOR if words.search(message)), None)
    return tuple(line for line in ADVICE.get(reason or "", ()) if line not in (GOES_ON, MISNAMED)) or (
        "Mend what is named above.",
    )


def _of_dataset(job: Job, message: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    if message.startswith("no bundled dataset"):
        return _NO_SUCH_BUNDLED
    config_map = config_map_of_dataset(job).get("name")
    if not config_map or not _ROW_WORDS.search(message):
        return otherwise
    return _ROW_OF_PLUGIN if config_map == local_files.rows_name(job.name) else _ROW_OF_CONFIG_MAP
