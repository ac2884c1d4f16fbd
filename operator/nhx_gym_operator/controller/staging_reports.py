"""What the stage containers of a job's evaluator pod said about the FileSets that they read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..api.conditions import ConditionType, StagedReason
from ..api.constants import STAGE_CONTAINERS
from ..api.wire.plans import STAGE_PLAN_ENV, StagePlan
from ..api.wire.reports import Staged
from ..workloads.podspec import plan_in
from . import podview
from .status_draft import StatusDraft

Manifest = dict[str, Any]


@dataclass(frozen=True)
class StagingReport:
    """What one stage container said about the FileSet it read, when it ended."""

    plan: StagePlan
    time: str
    """RFC 3339, of its end."""
    staged: Staged | None = None
    failure: str = ""
    """Why nothing was staged, where `staged` is None."""

    @property
    def seen_by(self) -> dict[str, Any]:
        return {"job": self.plan.job, "attempt": self.plan.attempt, "time": self.time}


def show(draft: StatusDraft, pod: Manifest | None) -> None:
    """The condition Staged of a job whose pod stages anything, and the digest of its environment."""
    if not _stages(pod):
        return
    if is_done(pod):
        draft.set(ConditionType.STAGED, True, StagedReason.STAGED, _show_digests(draft, reports(pod)))
    else:
        draft.set(ConditionType.STAGED, False, StagedReason.STAGING, "the job's FileSets are being staged")


def is_done(pod: Manifest | None) -> bool:
    """Whether all that the pod stages is there."""
    return all((podview.terminated(pod, name) or {}).get("exitCode") == 0 for name in _stages(pod))


def failure(pod: Manifest | None) -> str | None:
    """Why staging failed, in its own words; None if it has not."""
    ends = (podview.terminated(pod, name) for name in _stages(pod))
    return next((_failure(ended) for ended in ends if ended and ended.get("exitCode") != 0), None)


def reports(pod: Manifest | None) -> tuple[StagingReport, ...]:
    """Of the containers that have ended, and said something that can be read."""
    found = [_report(pod, name) for name in _stages(pod)]
    return tuple(report for report in found if report is not None)


def _stages(pod: Manifest | None) -> list[str]:
    names = podview.container_names(pod) if pod else set()
    return [name for name in STAGE_CONTAINERS if name in names]


def _report(pod: Manifest, container: str) -> StagingReport | None:
    ended = podview.terminated(pod, container)
    plan = plan_in(pod, container, STAGE_PLAN_ENV, StagePlan)
    if ended is None or plan is None or not ended.get("finishedAt"):
        return None
    if ended.get("exitCode") != 0:
        return StagingReport(plan, ended["finishedAt"], failure=_failure(ended))
    try:
        return StagingReport(plan, ended["finishedAt"], Staged.model_validate_json(ended.get("message", "").strip()))
    except ValidationError:
        return None


def _failure(ended: Manifest) -> str:
    words = ended.get("message", "").strip()
    return words or f"exit code {ended.get('exitCode')} ({ended.get('reason', 'no reason')})"


def _show_digests(draft: StatusDraft, reports: Iterable[StagingReport]) -> str:
    """What was staged, as a status and as a condition's message say it. An environment that changed between two
    attempts of a job is said for good: rollouts of both may stand in its result."""
    for report in reports:
        if report.staged is None or report.plan.dataset is not None:
            continue
        ran = draft.data.setdefault("ran", {})
        known, found = ran.get("environmentDigest", report.staged.digest), report.staged.digest
        ran["environmentDigest"] = found
        if known != found:
            ran["earlierEnvironmentDigests"] = list(dict.fromkeys([*ran.get("earlierEnvironmentDigests", ()), known]))
        others = [digest for digest in ran.get("earlierEnvironmentDigests", ()) if digest != found]
        if others:
            return f"staged and verified; the environment is {found}, but earlier attempts staged {', '.join(others)}"
    return "staged and verified"
