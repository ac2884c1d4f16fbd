"""FileSets: whether every file that a set names can be read from its source, and what they are.

A ConfigMap the operator reads itself. Any other source only pods can read: there the stage containers of jobs
report, and the set's status says whose report it shows.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..api.conditions import AcceptedReason, FileSetConditionType, FileSetReason
from ..api.fileset import FileSet
from ..workloads.staging import described
from .conditions import condition
from .inputs import ConfigMapContent, Missing
from .staging_reports import StagingReport

Manifest = dict[str, Any]

RESOLVED_AGAIN_SECONDS = 60.0
UNRESOLVED_AGAIN_SECONDS = 10.0


def file_set_status(
    file_set: FileSet, content: ConfigMapContent | Missing | None, report: StagingReport | None, now: datetime
) -> Manifest:
    """The set's whole status. `content` None: only pods can read the source, and `report` is the latest that this
    operator has heard."""
    if isinstance(content, Missing):
        return _status(file_set, now, "False", _missing_reason(content), content.message, {"files": 0})
    if content is not None:
        facts = {"files": len(content.files.items), "bytes": content.bytes, "digest": content.digest}
        message = f"{len(content.files.items)} files from ConfigMap {content.files.name!r}"
        return _status(file_set, now, "True", FileSetReason.RESOLVED, message, facts)
    if report is None or not _is_news(file_set, report):
        if _was_read(file_set):
            return file_set.status.to_dict()
        message = f"only pods can read {described(file_set.spec)}; the first job that uses this set will tell"
        return _status(file_set, now, "Unknown", FileSetReason.NOT_READ_YET, message, {})
    return _reported(file_set, report, now)


def _reported(file_set: FileSet, report: StagingReport, now: datetime) -> Manifest:
    job, source = report.plan.job, described(file_set.spec)
    if report.staged is None:
        message = f"job {job!r} could not stage {source}: {report.failure}"
        return _status(file_set, now, "False", FileSetReason.STAGING_FAILED, message, {"seenBy": report.seen_by})
    message = f"job {job!r} staged {report.staged.files} files from {source}"
    before, digest = file_set.status, report.staged.digest
    if before.digest and before.seen_by and before.digest != digest and _is_current(file_set):
        message += (
            f"; the content has changed: it is {digest}, and job {before.seen_by.job!r} had found {before.digest}. "
            f"Set spec.digest to have other content refused"
        )
    facts = {**report.staged.model_dump(), "seenBy": report.seen_by}
    return _status(file_set, now, "True", FileSetReason.RESOLVED, message, facts)


def _is_news(file_set: FileSet, report: StagingReport) -> bool:
    """Whether a report is about the present spec, and later than the one that the status shows."""
    if report.plan.generation != file_set.metadata.generation:
        return False
    seen = file_set.status.seen_by
    return seen is None or not _is_current(file_set) or report.time > seen.time


def _was_read(file_set: FileSet) -> bool:
    return file_set.status.seen_by is not None and _is_current(file_set)


def _is_current(file_set: FileSet) -> bool:
    return file_set.status.observed_generation == file_set.metadata.generation


def _status(
    file_set: FileSet, now: datetime, resolved: str, reason: FileSetReason, message: str, facts: Manifest
) -> Manifest:
    kind, generation = FileSetConditionType.RESOLVED, file_set.metadata.generation
    before = next(iter(file_set.status.to_dict().get("conditions", ())), None)
    return {
        "observedGeneration": generation,
        **facts,
        "conditions": [condition(before, kind, resolved, reason, message, generation, now)],
    }


def _missing_reason(missing: Missing) -> FileSetReason:
    if missing.reason is AcceptedReason.FILESET_NOT_RESOLVED:
        return FileSetReason.NO_FILES
    return FileSetReason(missing.reason.value)
