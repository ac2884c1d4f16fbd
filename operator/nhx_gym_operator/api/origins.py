"""Where each field and default of the API comes from, attached to the field itself."""

from __future__ import annotations

from dataclasses import dataclass

CUSTOM_ENVIRONMENT_PAGE = "evals/agent-eval/gym-custom-environment.mdx"
GYM_RUNNER_PAGE = "evals/agent-eval/gym-runner.mdx"
BATCH_JOB_PAGE = "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#JobSpec"


@dataclass(frozen=True)
class Origin:
    """The place that names a field. `name` is its name there, or None where the name is ours."""

    source: str
    name: str | None = None
    default: str = ""
    """Where the default is from, if not from the same place."""


def gym_config(name: str) -> Origin:
    """A field of the installed `GymRuntimeConfig`."""
    return Origin("nhx_evals_sdk.agent_eval.runtimes.gym.GymRuntimeConfig", name)


def run_config(name: str) -> Origin:
    """A field of the installed `AgentEvalRunConfig`."""
    return Origin("nhx_evals_sdk.agent_eval.tasks.AgentEvalRunConfig", name)


def page(path: str, name: str) -> Origin:
    """A field that only a documentation page names; `path` is below `nemo_helix_ext/cli/docs`."""
    return Origin(f"docs page {path}", name)


def kubernetes(name: str) -> Origin:
    """A field that works as its namesake in the Kubernetes API."""
    return Origin("Kubernetes API", name)


def batch_job(name: str) -> Origin:
    """A field that works as its namesake of batch/v1 Job; docs/life-cycle.md says where one differs."""
    return Origin(f"[batch/v1 Job]({BATCH_JOB_PAGE})", name)


def ours(why: str, default: str = "") -> Origin:
    """A name found in no package and on no page."""
    return Origin(f"ours: {why}", None, default)
