"""Whose job it is: `spec.managedBy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...api.constants import JOB_CONTROLLER


def is_ours(job: Mapping[str, Any]) -> bool:
    """Asked of the object as it is stored: of another controller's job not even the status is read."""
    return (job.get("spec") or {}).get("managedBy") in (None, JOB_CONTROLLER)
