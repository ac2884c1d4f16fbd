"""What this evaluator was told, and where its files are."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ..api.constants import POLICY_MODEL, Placement
from ..api.object_store import ACCESS_KEY_ID, CERTIFICATES, SECRET_ACCESS_KEY, SESSION_TOKEN
from ..api.wire import mounts, plans, reports
from ..api.wire.message import Message
from ..api.wire.plans import EvaluatorPlan, FetchPlan, OutcomePlan, StagePlan
from ..in_pods.mounted import MountedSecret, SecretError, read_secret

log = logging.getLogger(__name__)

_SECRET_FIELDS = {
    mounts.AUTHORIZATION: "spec.source.http.authorization",
    ACCESS_KEY_ID: "spec.source.s3.credentials.accessKeyId",
    SECRET_ACCESS_KEY: "spec.source.s3.credentials.secretAccessKey",
    SESSION_TOKEN: "spec.source.s3.credentials.sessionToken",
}


class PlanError(ValueError):
    """The plan is absent or cannot be used."""


@dataclass(frozen=True)
class Paths:
    """Every place that the evaluator reads or writes. The defaults are the pod's mounts."""

    results: Path = Path(mounts.RESULTS_DIR)
    work: Path = Path(mounts.WORK_DIR)
    source: Path = Path(mounts.SOURCE_DIR)
    source_secrets: Path = Path(mounts.SOURCE_SECRETS_DIR)
    environment: Path = Path(mounts.ENVIRONMENT_DIR)
    staged_dataset: Path = Path(mounts.DATASET_FILE)
    bundled_datasets: Path = Path(mounts.BUNDLED_DATASETS_DIR)
    model_keys: Path = Path(mounts.MODEL_KEYS_DIR)
    model_certificates: Path = Path(mounts.MODEL_CERTIFICATES_DIR)
    tokens: Path = Path(mounts.TOKENS_DIR)
    dataset: Path = Path(mounts.DATASET_DIR)
    object_store: Path = Path(mounts.OBJECT_STORE_DIR)
    termination_log: Path = Path(reports.TERMINATION_LOG)

    @property
    def source_certificates(self) -> Path:
        return self.source_secrets / CERTIFICATES / mounts.SECRET_FILE

    @property
    def journal(self) -> Path:
        return self.results / Path(mounts.JOURNAL).name

    @property
    def log(self) -> Path:
        return self.results / Path(mounts.EVALUATOR_LOG).name

    def logs(self) -> list[Path]:
        """The evaluator's log, what went before it first."""
        return [file for file in (self.log.with_name(f"{self.log.name}.1"), self.log) if file.is_file()]

    @property
    def outcome(self) -> Path:
        return self.results / "outcome.json"

    def dataset_file(self, named: str) -> Path:
        """The plan's dataset file; a relative one lies among the bundled datasets."""
        return self.bundled_datasets / named

    def attempt(self, number: int) -> Path:
        """The directory of one attempt: the SDK's bundle, and Gym's own files in `gym_run`."""
        return self.results / mounts.attempt_dir(number)


@dataclass(frozen=True)
class Tokens:
    """Bearer tokens that the API accepts."""

    progress: str
    hosts: Mapping[int, str]
    """By the host's ordinal."""
    local_gym: str
    """For a Gym in this very container. Made here, and useless elsewhere."""


def load_plan(environment: Mapping[str, str]) -> EvaluatorPlan:
    """The plan in `EVALUATOR_PLAN_ENV`. Raises `PlanError` naming what is wrong with it."""
    plan = _plan(EvaluatorPlan, environment, plans.EVALUATOR_PLAN_ENV)
    if not any(route.name == POLICY_MODEL for route in plan.models):
        raise PlanError(f"{plans.EVALUATOR_PLAN_ENV} names no model `{POLICY_MODEL}`")
    return plan


def load_stage_plan(environment: Mapping[str, str]) -> StagePlan:
    """The plan in `STAGE_PLAN_ENV`. Raises `PlanError` naming what is wrong with it."""
    return _plan(StagePlan, environment, plans.STAGE_PLAN_ENV)


def load_outcome_plan(environment: Mapping[str, str]) -> OutcomePlan:
    """The plan in `OUTCOME_PLAN_ENV`. Raises `PlanError` naming what is wrong with it."""
    return _plan(OutcomePlan, environment, plans.OUTCOME_PLAN_ENV)


def load_fetch_plan(environment: Mapping[str, str]) -> FetchPlan:
    """The plan in `FETCH_PLAN_ENV`. Raises `PlanError` naming what is wrong with it."""
    return _plan(FetchPlan, environment, plans.FETCH_PLAN_ENV)


def _plan[Plan: Message](model: type[Plan], environment: Mapping[str, str], variable: str) -> Plan:
    raw = environment.get(variable, "").strip()
    if not raw:
        raise PlanError(f"{variable} is not set: this program is started in a pod, by the operator or kubectl nhx")
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise PlanError(f"{variable} is not a valid plan: {problems}") from error


def load_source_secrets(directory: Path) -> dict[str, str]:
    """The secrets of a FileSet's source by name, without white space around them. Raises `PlanError` for one that no
    header can carry, by its field and never by its text."""
    secrets = {}
    for file in sorted(directory.glob(f"*/{mounts.SECRET_FILE}")):
        if file.parent.name == CERTIFICATES:
            continue
        field = f"the FileSet's {_SECRET_FIELDS[file.parent.name]}"
        found = _readable(file, field)
        if found.trimmed:
            log.warning("white space around %s was left out", field)
        secrets[file.parent.name] = found.text
    return secrets


def load_tokens(directory: Path, plan: EvaluatorPlan) -> Tokens:
    """Read the token files. Raises `PlanError` naming the one that is missing or empty."""
    hosts = range(plan.hosts) if plan.placement is Placement.SANDBOXED else ()
    return Tokens(
        progress=_token(directory / mounts.PROGRESS_TOKEN),
        hosts={ordinal: _token(directory / mounts.host_token_file(ordinal)) for ordinal in hosts},
        local_gym=secrets.token_hex(32),
    )


def _token(file: Path) -> str:
    return _readable(file, f"the token {file}").text


def _readable(file: Path, field: str) -> MountedSecret:
    try:
        return read_secret(file, field)
    except SecretError as error:
        raise PlanError(str(error)) from None
