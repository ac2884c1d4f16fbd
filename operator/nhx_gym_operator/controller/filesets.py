"""FileSets: whether every file that a set names can be read from its source."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..api.conditions import AcceptedReason, FileSetConditionType, FileSetReason
from ..api.fileset import FileSet
from ..workloads.workload import ConfigMapFiles
from .clock import format_time
from .inputs import Missing

RESOLVED_AGAIN_SECONDS = 60.0
UNRESOLVED_AGAIN_SECONDS = 10.0


def file_set_status(file_set: FileSet, found: ConfigMapFiles | Missing, now: datetime) -> dict[str, Any]:
    """The set's whole status."""
    resolved = isinstance(found, ConfigMapFiles)
    status = "True" if resolved else "False"
    before = next(iter(file_set.status.conditions or ()), None)
    changed = before is None or before.status != status
    return {
        "observedGeneration": file_set.metadata.generation,
        "files": len(found.items) if isinstance(found, ConfigMapFiles) else 0,
        "conditions": [
            {
                "type": FileSetConditionType.RESOLVED.value,
                "status": status,
                "reason": _reason(found),
                "message": _message(found),
                "lastTransitionTime": format_time(now) if changed or before is None else before.last_transition_time,
                "observedGeneration": file_set.metadata.generation,
            }
        ],
    }


def _reason(found: ConfigMapFiles | Missing) -> str:
    if isinstance(found, ConfigMapFiles):
        return FileSetReason.RESOLVED.value
    if found.reason is AcceptedReason.FILESET_NOT_RESOLVED:
        return FileSetReason.NO_FILES.value
    return FileSetReason(found.reason.value).value


def _message(found: ConfigMapFiles | Missing) -> str:
    if isinstance(found, ConfigMapFiles):
        return f"{len(found.items)} files from ConfigMap {found.name!r}"
    return found.message
