"""Names and labels of a job's children. Deterministic, so that asking twice makes one object."""

from __future__ import annotations

import hashlib
import re

from ..api.constants import ATTEMPT_LABEL, JOB_UID_LABEL, MANAGED_BY, MANAGED_BY_LABEL, ROLE_LABEL, Placement, Role

_PLAIN_BASE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_BASE_LENGTH = 40
_CUT_LENGTH = 31
_UID_LENGTH = 8


def base_name(job: str) -> str:
    """The stem of every child's name: the job's own name, or a cut one with 8 hex digits of its hash
    where that is too long or not a DNS-1035 label, which a Service's name has to be."""
    if len(job) <= _BASE_LENGTH and _PLAIN_BASE.fullmatch(job):
        return job
    stem = re.sub(r"[^a-z0-9]+", "-", job)
    if not stem[0].isalpha():
        stem = f"job-{stem.lstrip('-')}"
    return f"{stem[:_CUT_LENGTH].rstrip('-')}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"


def service_name(job: str) -> str:
    return base_name(job)


def claim_name(job: str, retained_by: str = "") -> str:
    """`retained_by` is the UID of a job whose claim outlives it: another job of the same name gets another claim."""
    return "-".join(filter(None, (base_name(job), "results", retained_by[:_UID_LENGTH])))


def policy_name(job: str, role: Role) -> str:
    suffix = "host" if role is Role.GYM_HOST else "evaluator"
    return f"{base_name(job)}-{suffix}"


def evaluator_pod_name(job: str, attempt: int, placement: Placement) -> str:
    role = "evaluator" if placement is Placement.SANDBOXED else "gym-tasks"
    return f"{base_name(job)}-{role}-{attempt}"


def host_pod_name(job: str, ordinal: int, attempt: int) -> str:
    return f"{base_name(job)}-host-{ordinal}-{attempt}"


def outcome_pod_name(job: str, attempt: int) -> str:
    return f"{base_name(job)}-outcome-{attempt}"


def evaluator_role(placement: Placement) -> Role:
    return Role.EVALUATOR if placement is Placement.SANDBOXED else Role.COLOCATED


def child_labels(uid: str, role: Role, attempt: int | None = None) -> dict[str, str]:
    """Labels of a child; the same without `attempt` select a role's pods of any attempt."""
    labels = {MANAGED_BY_LABEL: MANAGED_BY, JOB_UID_LABEL: uid, ROLE_LABEL: role.value}
    if attempt is not None:
        labels[ATTEMPT_LABEL] = str(attempt)
    return labels


def selector(uid: str, role: Role) -> dict[str, str]:
    return {JOB_UID_LABEL: uid, ROLE_LABEL: role.value}
