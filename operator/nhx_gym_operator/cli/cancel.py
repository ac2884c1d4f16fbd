"""`kubectl nhx cancel`: sets `spec.cancel`, which the operator acts on."""

from __future__ import annotations

import json
import time

from ..client.errors import TimedOut, UserError
from ..client.jobs import JOB_RESOURCE, Job, get_job
from ..client.kubectl import Kubectl
from ..client.patience import Patience
from .output import span

POLL_SECONDS = 1.0
_PATCH = json.dumps({"spec": {"cancel": True}})


def cancel(kubectl: Kubectl, name: str) -> Job:
    """Asks for the end of the job; one that has ended is left as it is."""
    job = get_job(kubectl, name)
    if job.finished:
        return job
    return Job(kubectl.json("patch", JOB_RESOURCE, name, "--type=merge", f"--patch={_PATCH}"))


def until_ended(kubectl: Kubectl, job: Job, timeout: float | None) -> Job:
    deadline = None if timeout is None else time.monotonic() + timeout
    patience = Patience()
    while not job.finished:
        if deadline is not None and time.monotonic() > deadline:
            raise TimedOut(f"job `{job.name}` has not ended within {span(timeout or 0)} ({job.says}).")
        time.sleep(POLL_SECONDS)
        try:
            job = get_job(kubectl, job.name)
        except UserError as error:
            patience.bear(error)
        else:
            patience.answered()
    return job


def sentence(job: Job, *, before: bool) -> str:
    """What became of the request. `before`: whether the job had ended before it."""
    if before:
        return f"job {job.name} has ended already ({job.phase}); nothing was changed"
    if job.finished:
        return f"job {job.name}: {job.says}"
    return f"job {job.name} is being cancelled; its pods have their grace period to end"
