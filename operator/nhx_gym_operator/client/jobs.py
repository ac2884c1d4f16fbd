"""An AgentEvalJob and its pods, as the API server shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..api import pod_facts
from ..api.conditions import ConditionType, explaining
from ..api.constants import (
    BUCKET_LOCATION,
    CLAIM_LOCATION,
    GROUP,
    IMAGE_ANNOTATION,
    JOB_ANNOTATION,
    JOB_PLURAL,
    JOB_UID_LABEL,
    RETAINED_LABEL,
    Phase,
    Role,
)
from ..api.wire.mounts import attempt_dir
from .errors import KubectlError, NotFound, UserError
from .kubectl import Kubectl

JOB_RESOURCE = f"{JOB_PLURAL}.{GROUP}"

NOT_INSTALLED = (
    "this cluster has no AgentEvalJobs: the chart nhx-gym-operator is not installed on it. "
    "If you meant another cluster, pass --context."
)

DELETED = "Deleted"
"""In place of the phase of a job of which only the results are left."""

Body = dict[str, Any]


@dataclass(frozen=True)
class Job:
    body: Body

    @property
    def name(self) -> str:
        return self.body["metadata"]["name"]

    @property
    def namespace(self) -> str:
        return self.body["metadata"]["namespace"]

    @property
    def uid(self) -> str:
        return self.body["metadata"]["uid"]

    @property
    def status(self) -> Body:
        return self.body.get("status") or {}

    @property
    def phase(self) -> str:
        return self.status.get("phase") or Phase.PENDING

    @property
    def finished(self) -> bool:
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)

    @property
    def progress(self) -> str:
        """Recorded rollouts of all, as in the Progress column: `6/10`, or an empty string."""
        return (self.status.get("progress") or {}).get("summary") or ""

    @property
    def results_location(self) -> str:
        """What the status says about where the bundle is; empty before anything says so."""
        return (self.status.get("results") or {}).get("location") or ""

    @property
    def is_in_bucket(self) -> bool:
        """Whether the bundle was brought to the bucket of `spec.results.objectStore`."""
        return self.results_location.startswith(BUCKET_LOCATION)

    @property
    def claim(self) -> str | None:
        """The claim that holds the results, or None if they lie in an emptyDir or nowhere yet."""
        location = self.results_location
        return location.removeprefix(CLAIM_LOCATION) if location.startswith(CLAIM_LOCATION) else None

    @property
    def results_path(self) -> str:
        """The bundle's directory on the results volume. A job that failed early names none; the attempt's logs are
        still in the directory that the attempt was given."""
        path = (self.status.get("results") or {}).get("path")
        return path or attempt_dir(self.status.get("attempt") or 1)

    @property
    def egress(self) -> str:
        """What its Gym asked of other hosts, in words; empty if nothing is open to it or nothing was asked."""
        used = self.status.get("egress") or {}
        if not used.get("requests"):
            return ""
        passed = ", ".join(f"{entry['entry']} ({entry.get('requests', 0)})" for entry in used.get("passed") or ())
        words = f"Gym sent {used['requests']} requests for other hosts, {used.get('refused', 0)} of them refused"
        return f"{words}; allowed by {passed}" if passed else words

    @property
    def says(self) -> str:
        """Phase and the message of the condition that explains it, for use in messages."""
        message = self._message()
        return f"{self.phase}: {message}" if message else self.phase

    def _message(self) -> str:
        cause = self.cause
        return cause.get("message") or cause.get("reason") or ""

    @property
    def conditions(self) -> list[Body]:
        return self.status.get("conditions") or []

    def condition(self, kind: ConditionType) -> Body:
        """Empty if there is none of that type."""
        return next((entry for entry in self.conditions if entry["type"] == kind), {})

    def is_true(self, kind: ConditionType) -> bool:
        return self.condition(kind).get("status") == "True"

    @property
    def cause(self) -> Body:
        """The condition that explains the phase; empty if no operator has looked at the job yet."""
        return dict(explaining(self.conditions))


def find_job(kubectl: Kubectl, name: str) -> Job:
    """The job, or what there is of a deleted one: its results, where their claim was to stay."""
    try:
        return get_job(kubectl, name)
    except NotFound as error:
        claim = _claim_that_stayed(kubectl, name)
        if claim is None:
            raise error from None
        return _remains(name, claim)


def _claim_that_stayed(kubectl: Kubectl, name: str) -> Body | None:
    """The newest one, where a job of that name ran several times."""
    try:
        claims = kubectl.json("get", "persistentvolumeclaims", f"--selector={RETAINED_LABEL}=true")["items"]
    except KubectlError:
        return None
    own = [claim for claim in claims if (claim["metadata"].get("annotations") or {}).get(JOB_ANNOTATION) == name]
    return max(own, key=lambda claim: claim["metadata"]["creationTimestamp"], default=None)


def _remains(name: str, claim: Body) -> Job:
    """Stands for the job that is gone: all attempts, since nothing says which one was the last."""
    metadata = {"name": name, "namespace": claim["metadata"]["namespace"], "uid": ""}
    results = {"location": f"{CLAIM_LOCATION}{claim['metadata']['name']}", "path": "."}
    image = claim["metadata"]["annotations"].get(IMAGE_ANNOTATION)
    results |= {"image": image} if image else {}
    return Job({"metadata": metadata, "status": {"phase": DELETED, "attempt": 1, "results": results}})


def get_jobs(kubectl: Kubectl, *, all_namespaces: bool = False, selector: str | None = None) -> list[Job]:
    """Jobs of the namespace or of all of them, the oldest first. `selector` is about Kubernetes labels."""
    flags = [*(["--all-namespaces"] if all_namespaces else []), *([f"--selector={selector}"] if selector else [])]
    try:
        items = kubectl.json("get", JOB_RESOURCE, *flags)["items"]
    except KubectlError as error:
        raise _as_not_found(error, "", kubectl.namespace) from None
    return sorted((Job(item) for item in items), key=lambda job: (job.body["metadata"]["creationTimestamp"], job.name))


def get_job(kubectl: Kubectl, name: str) -> Job:
    try:
        return Job(kubectl.json("get", JOB_RESOURCE, name))
    except KubectlError as error:
        raise _as_not_found(error, name, kubectl.namespace) from None


def _as_not_found(error: KubectlError, name: str, namespace: str | None) -> UserError:
    where = f"namespace `{namespace}`" if namespace else "the namespace of the current context"
    if error.kind_unknown:
        return NotFound(NOT_INSTALLED)
    if error.not_found:
        return NotFound(
            f"there is no AgentEvalJob `{name}` in {where}. "
            "`kubectl get aej --all-namespaces` lists them; pass --namespace to choose one."
        )
    return error


def pods_of(kubectl: Kubectl, job: Job) -> list[Body]:
    """All pods of the job that still exist, of every attempt, the first attempt first."""
    pods = kubectl.in_namespace(job.namespace).json("get", "pods", f"--selector={JOB_UID_LABEL}={job.uid}")["items"]
    return sorted(
        pods, key=lambda pod: (pod_facts.attempt(pod), pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
    )


def evaluator_of(pods: list[Body]) -> Body | None:
    """The newest pod that runs (or ran) the evaluator, whichever the placement."""
    evaluators = [pod for pod in pods if pod_facts.role(pod) in (Role.EVALUATOR, Role.COLOCATED)]
    return evaluators[-1] if evaluators else None
