"""What `kubectl nhx explain` says to do about a job."""

from __future__ import annotations

from ...api.constants import JOB_CONTROLLER
from ...client.jobs import Body, Job
from .by_message import lines_for
from .by_reason import ADVICE, SELF_EXPLAINED
from .facts import facts

__all__ = ["ADVICE", "SELF_EXPLAINED", "advice"]

UNSEEN = (
    "No operator has looked at this job. Is one running, and does it serve namespace {namespace}? "
    "`kubectl get deployments --all-namespaces -l app.kubernetes.io/name=nhx-gym-operator` shows them; the chart's "
    "watchNamespaces says which namespaces one serves.",
)
MANAGED = ("The job is looked after by {managed_by} (spec.managedBy); the operator of this project leaves it alone.",)


def advice(job: Job, cause: Body, errors: str = "") -> list[str]:
    """What to do about the condition `cause`; nothing if the job is on its way or all is well. `errors` are exceptions
    from the logs, which a message may be too short for."""
    reason, message = cause.get("reason", ""), cause.get("message", "")
    if job.conditions:
        lines = lines_for(job, reason, message, errors)
    else:
        managed = (job.body.get("spec") or {}).get("managedBy") not in (None, JOB_CONTROLLER)
        lines = MANAGED if managed else UNSEEN
    names = facts(job, message)
    return [line.format_map(names) for line in lines]
