"""Submitting an evaluation: from a spec file or a live runner to an AgentEvalJob.

    from nhx_gym_operator.submission import GymPlacement, submit

What speaks of live runners needs NVIDIA's evaluation SDK (`pip install nhx-gym-operator[submit]`) and is imported when
it is first named; spec files do not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import SubmissionError, UnsubmittableRunnerError
from .target import AgentEvalInputSpec, FilesetRef, GymPlacement, GymRunnerTarget, TasksetRef

if TYPE_CHECKING:
    from .bundle import read_bundle
    from .handle import (
        AgentEvaluatorJobResource,
        AsyncAgentEvaluatorJobResource,
        JobNotCompletedError,
        JobProgress,
        get_job_resource,
    )
    from .live import submit, submit_async
    from .taskset import write_taskset

_WITH_THE_SDK = {
    "submit": "live",
    "submit_async": "live",
    "AgentEvaluatorJobResource": "handle",
    "AsyncAgentEvaluatorJobResource": "handle",
    "JobNotCompletedError": "handle",
    "JobProgress": "handle",
    "get_job_resource": "handle",
    "read_bundle": "bundle",
    "write_taskset": "taskset",
}

__all__ = [
    "AgentEvalInputSpec",
    "AgentEvaluatorJobResource",
    "AsyncAgentEvaluatorJobResource",
    "FilesetRef",
    "GymPlacement",
    "GymRunnerTarget",
    "JobNotCompletedError",
    "JobProgress",
    "SubmissionError",
    "TasksetRef",
    "UnsubmittableRunnerError",
    "get_job_resource",
    "read_bundle",
    "submit",
    "submit_async",
    "write_taskset",
]


def __getattr__(name: str) -> Any:
    module = _WITH_THE_SDK.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)
