"""Secrets that carry a job's tokens. Immutable and only ever created: the operator reads none back."""

from __future__ import annotations

import base64
from typing import Any

from ..api.constants import Role
from ..api.wire.mounts import HOST_TOKEN, PROGRESS_TOKEN, host_token_file
from . import names, tokens
from .workload import Workload


def evaluator_secret_name(workload: Workload) -> str:
    suffix = tokens.name_suffix(workload.key, workload.uid, "evaluator", 0)
    return f"{names.base_name(workload.name)}-evaluator-{suffix}"


def host_secret_name(workload: Workload, ordinal: int) -> str:
    suffix = tokens.name_suffix(workload.key, workload.uid, "host", ordinal)
    return host_secret_stem(workload.name, ordinal) + suffix


def host_secret_stem(job: str, ordinal: int) -> str:
    """What of the name anybody can know."""
    return f"{names.base_name(job)}-host-{ordinal}-"


def token_secrets(workload: Workload) -> list[dict[str, Any]]:
    """The evaluator's tokens, and each host's own."""
    hosts = {n: tokens.host_token(workload.key, workload.uid, n) for n in range(workload.hosts)}
    evaluator = {PROGRESS_TOKEN: tokens.progress_token(workload.key, workload.uid)}
    evaluator |= {host_token_file(n): token for n, token in hosts.items()}
    role = names.evaluator_role(workload.placement)
    return [_secret(workload, evaluator_secret_name(workload), role, evaluator)] + [
        _secret(workload, host_secret_name(workload, n), Role.GYM_HOST, {HOST_TOKEN: token})
        for n, token in hosts.items()
    ]


def _secret(workload: Workload, name: str, role: Role, values: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": workload.metadata(name, role),
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }
