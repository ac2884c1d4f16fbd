"""`kubectl nhx submit`: a job from a manifest, from a spec file of the agent-evaluate shape, or from flags."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from ..api.constants import API_VERSION, JOB_KIND, POLICY_MODEL
from ..api.failure_policy import FailureAction, LossCause
from ..api.limits import Limits
from ..api.models import ModelSpec
from ..api.resource import KeyRef
from ..api.results import Results
from ..api.tasks import Tasks
from ..api.wire.reports import FailureClass
from ..client import interrupts
from ..client.creation import create_job, refusal
from ..client.errors import KubectlError, UsageProblem, UserError
from ..client.jobs import Body, Job
from ..client.kubectl import Kubectl
from ..submission.convert import DEFAULT_RESULTS, job_of, manifest_of, new_name
from ..submission.plain import plain
from ..submission.spec_file import faults_of, is_spec_file, parse_spec
from ..submission.target import AgentEvalInputSpec
from . import local_files


@dataclass(frozen=True)
class Flags:
    """What the command line says of a job; None and empty: nothing."""

    agent: str | None = None
    agent_config: str | None = None
    agent_ref_name: str | None = None
    resources_server: str | None = None
    model_type: str | None = None
    environment: str | None = None
    num_repeats: int | None = None
    concurrency: int | None = None
    hosts: int | None = None
    startup_timeout: float | None = None
    collection_timeout: float | None = None
    hydra_param: list[str] = field(default_factory=list)
    dataset: str | None = None
    limit: int | None = None
    base_url: str | None = None
    model: str | None = None
    api_key: str | None = None
    results: str | None = None
    min_coverage: float | None = None
    retry_failed: int | None = None
    backoff_limit: int | None = None
    failure_rule: list[str] = field(default_factory=list)
    active_deadline: float | None = None
    starting_deadline: float | None = None
    idle_timeout: float | None = None
    ttl_after_finished: float | None = None
    suspend: bool | None = None
    cost_limit: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)

    def given(self) -> list[str]:
        """Flags that were used, as they are written."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value not in (None, [])]


LIFE = (
    "min_coverage",
    "hosts",
    "retry_failed",
    "backoff_limit",
    "failure_rule",
    "active_deadline",
    "starting_deadline",
    "idle_timeout",
    "ttl_after_finished",
    "suspend",
    "cost_limit",
)
"""Flags about how a job runs on a cluster, of which a spec file knows nothing."""


@dataclass(frozen=True)
class Submission:
    """What is sent: the job, what stands beside it in the same file, and what comes from files of this machine."""

    job: Body
    beside: list[Body] = field(default_factory=list)
    own: list[Body] = field(default_factory=list)
    """They belong to the job and go with it."""
    warn_of_gym: bool = False
    """Whether it comes from where Gym runs too, so that a Gym of another version is worth a word."""

    @property
    def objects(self) -> list[Body]:
        return [*self.beside, *self.own, self.job]


def from_flags(flags: Flags, name: str | None) -> Submission:
    missing = [
        flag
        for flag, value in {
            "--resources-server": flags.resources_server,
            "--agent": flags.agent,
            "--dataset": flags.dataset,
            "--base-url": flags.base_url,
            "--model": flags.model,
        }.items()
        if not value
    ]
    if missing:
        raise UsageProblem(
            f"a job from flags needs {', '.join(missing)} too. Or name a file: a manifest or a spec file."
        )
    name = name or new_name(flags.resources_server or "gym")
    dataset, rows = dataset_of(flags.dataset or "", name)
    environment, files = environment_of(flags.environment, name) if flags.environment else (None, [])
    gym = {
        "agent": flags.agent,
        "agentConfig": flags.agent_config,
        "agentRefName": flags.agent_ref_name,
        "resourcesServer": flags.resources_server,
        "modelType": flags.model_type,
        "numRepeats": flags.num_repeats,
        "concurrency": flags.concurrency,
        "startupTimeoutSeconds": flags.startup_timeout,
        "collectionTimeoutSeconds": flags.collection_timeout,
        "hydraParams": hydra_params(flags.hydra_param),
        "environment": environment,
    }
    spec = {
        "tasks": _set({"dataset": dataset, "limit": flags.limit}),
        "target": {"gym": _set(gym)},
        "models": [model_of(flags)],
        "results": results_of(flags.results) if flags.results else DEFAULT_RESULTS.to_dict(),
        **life_of(flags),
        "labels": dict(_pair("--label", label) for label in flags.label),
    }
    job = {"apiVersion": API_VERSION, "kind": JOB_KIND, "metadata": {"name": name}, "spec": _set(spec)}
    return Submission(job, own=[*files, *rows])


def from_file(
    source: str, flags: Flags, name: str | None, namespace: str | None, secret_names: Iterable[str]
) -> Submission:
    """A manifest goes as it stands; a spec file leaves room for what it has no words for."""
    objects = load(source, sys.stdin)
    if is_spec_file(objects[0]) and len(objects) == 1:
        try:
            return from_spec(parse_spec(objects[0], source), source, flags, name, namespace, secret_names)
        except ValidationError as error:
            raise UsageProblem(f"what the flags say is not valid: {faults_of(error)}") from None
    others = [*flags.given(), *(["--secret"] if secret_names else [])]
    if others:
        raise UsageProblem(
            f"{source} says what to run; {', '.join(others)} can't change it. Only --name and --namespace go with a "
            "manifest."
        )
    return from_manifest(objects, source, name)


def from_spec(
    spec: AgentEvalInputSpec,
    source: str,
    flags: Flags,
    name: str | None,
    namespace: str | None,
    secret_names: Iterable[str],
) -> Submission:
    """A `gym_agent_eval.json`. Flags say where its rows, its models and its results are, in place of what it says."""
    beside = ("dataset", "limit", "base_url", "model", "api_key", "results", *LIFE)
    others = [flag for flag in flags.given() if flag[2:].replace("-", "_") not in beside]
    if others:
        raise UsageProblem(f"{source} says what to run; {', '.join(others)} can't change it.")
    name = name or new_name(spec.target.resources_server)
    dataset, rows = dataset_of(flags.dataset, name) if flags.dataset else (None, [])
    if flags.limit and not dataset:
        raise UsageProblem("--limit goes with --dataset; the tasks that a spec file names are taken whole.")
    more: Body = {"results": Results.model_validate(results_of(flags.results))} if flags.results else {}
    job = job_of(
        spec,
        name=name,
        namespace=namespace,
        tasks=Tasks.model_validate(_set({"dataset": dataset, "limit": flags.limit})) if dataset else None,
        models=_models(flags, source),
        secrets=dict(_secret(text) for text in secret_names),
        **more,
    )
    manifest = manifest_of(job)
    manifest["spec"] |= life_of(flags)
    return Submission(manifest, own=rows, warn_of_gym=True)


def _models(flags: Flags, source: str) -> list[ModelSpec]:
    """The policy, if the command line says where it is."""
    if not (flags.base_url or flags.model or flags.api_key):
        return []
    if not (flags.base_url and flags.model):
        raise UsageProblem(f"--base-url and --model go together, in place of what {source} says of the policy model.")
    return [ModelSpec.model_validate(model_of(flags))]


def _secret(text: str) -> tuple[str, KeyRef]:
    """`REFERENCE=SECRET/KEY`."""
    reference, where = _pair("--secret", text)
    return reference, KeyRef.model_validate(key_ref(where, "--secret REFERENCE=SECRET/KEY"))


def from_manifest(objects: list[Body], source: str, name: str | None) -> Submission:
    """A file of Kubernetes objects, one of which is a job."""
    jobs = [entry for entry in objects if entry.get("kind") == JOB_KIND]
    if len(jobs) != 1:
        raise UsageProblem(
            f"{source} holds {len(jobs) or 'no'} {JOB_KIND}{'s' if len(jobs) > 1 else ''}, and one is submitted at a "
            "time. `kubectl apply -f` takes files of any kind."
        )
    beside = [_checked(entry, source) for entry in objects if entry is not jobs[0]]
    job = _checked(jobs[0], source)
    if name:
        job["metadata"]["name"] = name
        job["metadata"].pop("generateName", None)
    return Submission(job, beside)


def _checked(entry: Body, source: str) -> Body:
    """An object as JSON has it, which kubectl is given."""
    kind = entry.get("kind")
    for name, form in (("apiVersion", str), ("kind", str), ("metadata", dict)):
        if not isinstance(entry.get(name), form):
            raise UsageProblem(f"{source}: an object{f' of kind {kind}' if kind else ''} has no {name}.")
    try:
        return plain(entry, str(kind))
    except ValueError as error:
        raise UsageProblem(f"{source}: {error}.") from None


def load(source: str, stdin: Any) -> list[Body]:
    """The objects of a YAML or JSON file; `-` is standard input. Lists are taken apart."""
    try:
        text = stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageProblem(f"{source} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageProblem(f"{source} is not UTF-8; save it as UTF-8.") from None
    try:
        values = [json.loads(text)] if source.endswith(".json") else list(yaml.safe_load_all(text))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageProblem(f"{source} is neither YAML nor JSON: {error}") from None
    objects = [item for value in values if value for item in _items(value)]
    if not objects or not all(isinstance(item, dict) for item in objects):
        raise UsageProblem(f"{source} holds no Kubernetes object.")
    return objects


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        return value["items"]
    return [value]


def send(kubectl: Kubectl, submission: Submission) -> Job:
    """The job as the API server took it. The name of a job that exists is refused: nothing is overwritten."""
    applied: list[str] = []
    with interrupts.held() as check:
        try:
            for entry in submission.beside:
                check()
                applied.append(_applied(kubectl.apart(), entry))
            check()
            return create_job(kubectl, submission.job, submission.own)
        except (UserError, KeyboardInterrupt) as error:
            if applied:
                error.add_note(f"Applied before, from the same file, and left there: {', '.join(applied)}.")
            raise


def _applied(kubectl: Kubectl, entry: Body) -> str:
    """What to call it."""
    what = f"{entry.get('kind')} `{(entry.get('metadata') or {}).get('name')}`"
    try:
        kubectl.text("apply", "--filename=-", stdin=json.dumps(entry))
    except KubectlError as error:
        clear = refusal(error)
        clear.add_note(f"That was {what}, which is applied before the job; the job was not made.")
        raise clear from None
    return what


def dataset_of(text: str, job: str) -> tuple[Body, list[Body]]:
    """The `dataset` of a job for what --dataset says, and what is to be made for it."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "bundled":
        return {"bundled": rest}, []
    if colon and kind in ("configmap", "fileset", "pvc"):
        name, slash, path = rest.partition("/")
        if not slash or not name or not path:
            raise UsageProblem(f"--dataset {kind}: wants {kind}:NAME/{'KEY' if kind == 'configmap' else 'PATH'}.")
        match kind:
            case "configmap":
                return {"configMap": {"name": name, "key": path}}, []
            case "fileset":
                return {"fileSet": {"name": name, "path": path}}, []
            case _:
                return {"persistentVolumeClaim": {"claimName": name, "path": path}}, []
    config_map = local_files.rows(Path(text), job)
    return {"configMap": {"name": config_map["metadata"]["name"], "key": local_files.ROWS_KEY}}, [config_map]


def environment_of(text: str, job: str) -> tuple[Body, list[Body]]:
    """The `environment` of a job for what --environment says, and what is to be made for it: a path has a slash, and
    the name of a FileSet has none."""
    if "/" not in text:
        return {"fileSet": {"name": text}}, []
    config_map, file_set = local_files.environment(Path(text), job)
    return {"fileSet": {"name": file_set["metadata"]["name"]}}, [config_map, file_set]


def model_of(flags: Flags) -> Body:
    key = {"secretKeyRef": key_ref(flags.api_key, "--api-key SECRET/KEY")} if flags.api_key else None
    return _set({"name": POLICY_MODEL, "baseUrl": flags.base_url, "model": flags.model, "apiKey": key})


def key_ref(text: str, flag: str) -> Body:
    name, slash, key = text.partition("/")
    if not slash or not name or not key:
        raise UsageProblem(f"{flag} wants a Secret of the namespace and a key in it, not `{text}`.")
    return {"name": name, "key": key}


def results_of(text: str) -> Body:
    """`1Gi`, `claim:NAME` or `none`."""
    if text == "none":
        return {"emptyDir": {}}
    kind, colon, name = text.partition(":")
    if colon and kind == "claim" and name:
        return {"persistentVolumeClaim": {"claimName": name}}
    if not re.match(r"[0-9]", text):
        raise UsageProblem(f"--results wants a size such as 1Gi, claim:NAME or none, not `{text}`.")
    return {"persistentVolumeClaim": {"size": text}}


def life_of(flags: Flags) -> Body:
    """Fields of the spec for the flags of `LIFE`."""
    rules = [_failure_rule(text) for text in flags.failure_rule]
    return _set(
        {
            "minCoverage": flags.min_coverage,
            "hosts": flags.hosts,
            "retryFailed": flags.retry_failed,
            "backoffLimit": flags.backoff_limit,
            "failurePolicy": _set({"rules": rules}),
            "activeDeadlineSeconds": _whole(flags.active_deadline),
            "startingDeadlineSeconds": _whole(flags.starting_deadline),
            "idleTimeoutSeconds": flags.idle_timeout,
            "ttlSecondsAfterFinished": _whole(flags.ttl_after_finished),
            "suspend": flags.suspend,
            "limits": dict(_cost_limit(text) for text in flags.cost_limit),
        }
    )


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else math.ceil(seconds)


def _failure_rule(text: str) -> Body:
    """`ACTION=KIND,KIND`: classes of failed rollouts, or causes of lost attempts."""
    action, kinds = _pair("--failure-rule", text)
    named = kinds.split(",")
    if action not in list(FailureAction):
        raise UsageProblem(f"--failure-rule wants one of {', '.join(FailureAction)} before the =, not `{action}`.")
    if set(named) <= set(FailureClass):
        return {"action": action, "onRollout": {"classes": named}}
    if set(named) <= set(LossCause):
        return {"action": action, "onLostAttempt": {"causes": named}}
    raise UsageProblem(
        f"--failure-rule {action} wants classes of failed rollouts ({', '.join(FailureClass)}) or causes of lost "
        f"attempts ({', '.join(LossCause)}), not `{kinds}`."
    )


def _cost_limit(text: str) -> tuple[str, int]:
    """`tokens=2000000`, by the names of `spec.limits`."""
    name, number = _pair("--cost-limit", text)
    known = [to_camel(each) for each in Limits.model_fields]
    if name not in known or not number.isascii() or not number.isdecimal():
        raise UsageProblem(f"--cost-limit wants one of {', '.join(known)}, = and a whole number, not `{text}`.")
    return name, int(number)


def hydra_params(pairs: Iterable[str]) -> Body | None:
    """`a.b=1` sets `{a: {b: 1}}`; the value is read as YAML, so that 1 is a number and [1, 2] a list."""
    found: Body = {}
    for pair in pairs:
        path, value = _pair("--hydra-param", pair)
        *parents, last = path.split(".")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UsageProblem(f"--hydra-param {path}: `{parent}` is a value already, and can't hold `{last}`.")
        try:
            place[last] = plain(yaml.safe_load(value), f"--hydra-param {path}")
        except yaml.YAMLError:
            raise UsageProblem(f"--hydra-param {path}: `{value}` is no YAML value; quote it.") from None
        except ValueError as error:
            raise UsageProblem(f"{error}.") from None
    return found or None


def _pair(flag: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageProblem(f"{flag} wants KEY=VALUE, not `{text}`.")
    return key, value


def _set(fields: Body) -> Body:
    """Without what was not said: a default is the API server's to give."""
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}
