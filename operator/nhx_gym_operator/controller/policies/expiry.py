"""When a job that has ended is deleted: `spec.ttlSecondsAfterFinished`."""

from __future__ import annotations

from datetime import datetime

from ..clock import parse_time, seconds_since
from ..observation import DeleteJob, Observation


def seconds_left(observation: Observation, now: datetime) -> float | None:
    """Of a finished job; 0 or less once it is to be deleted. None: it stays."""
    job = observation.job
    if observation.invalid or job.status.completion_time is None:
        return None
    ttl = job.spec.ttl_seconds_after_finished
    return None if ttl is None else ttl - seconds_since(parse_time(job.status.completion_time), now)


def deletion(observation: Observation) -> DeleteJob:
    """Of the job as it was observed: one whose time was extended in between stays."""
    metadata = observation.job.metadata
    return DeleteJob(metadata.namespace, metadata.name, metadata.uid, metadata.resource_version)
