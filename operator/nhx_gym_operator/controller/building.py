"""A job as the builders of its pods need it."""

from __future__ import annotations

from typing import Any

from ..api.constants import Placement
from ..workloads.workload import Workload
from .observation import Observation
from .policies import restarts


def workload_of(observation: Observation, status: dict[str, Any], attempt: int) -> Workload:
    """Where it runs is what `status` has pinned. Inputs are there only if they were looked up."""
    job, installation = observation.job, observation.installation
    inputs, service = observation.inputs, observation.service
    return Workload(
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        uid=job.metadata.uid,
        spec=job.spec,
        options=installation.settings,
        key=installation.key,
        placement=Placement(status["placement"]),
        runtime_class_name=status.get("runtimeClassName"),
        attempt=attempt,
        cluster_ip=service["spec"].get("clusterIP") if service else None,
        api=installation.api,
        dataset=inputs.dataset if inputs else None,
        environment=inputs.environment if inputs else None,
        restarts=installation.restarts and restarts.are_wanted(job.spec),
    )
