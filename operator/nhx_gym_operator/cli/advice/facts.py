"""A job's own names, for the places in an advice where they belong."""

from __future__ import annotations

import re

from ...api.constants import POLICY_MODEL, Placement
from ...client.jobs import Body, Job

_MODEL = re.compile(r"model (?P<name>\S+?)(?: (?:has )?answered no call|'s endpoint )")
_SECRET = re.compile(r"Secret '(?P<name>[^']+)'(?: has no key '(?P<key>[^']+)')?")
_CONFIG_MAP = re.compile(r"ConfigMap '(?P<name>[^']+)'")
_FILESET = re.compile(r"FileSet '(?P<name>[^']+)'")


def facts(job: Job, message: str) -> dict[str, str]:
    """By the name that stands in braces. `message` is the condition's, which may name what it is about."""
    spec = job.body.get("spec") or {}
    model = model_of(job, message)
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
        "environment": environment_of(job),
        "dataset": config_map_of_dataset(job).get("name", "NAME"),
        "dataset_key": config_map_of_dataset(job).get("key", "KEY"),
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


def environment_of(job: Job) -> str:
    """The FileSet with the job's own environment, or an empty string."""
    gym = ((job.body.get("spec") or {}).get("target") or {}).get("gym") or {}
    return ((gym.get("environment") or {}).get("fileSet") or {}).get("name", "")


def config_map_of_dataset(job: Job) -> Body:
    tasks = (job.body.get("spec") or {}).get("tasks") or {}
    return (tasks.get("dataset") or tasks.get("taskset") or {}).get("configMap") or {}


def model_of(job: Job, message: str) -> Body:
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
