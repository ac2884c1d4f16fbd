"""The bundle made whole and brought to where the job wants it, that of a failed job too."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api.conditions import RunReason
from ..api.constants import CLAIM_LOCATION
from ..api.wire.endpoints import Stage
from ..api.wire.mounts import GYM_RUN
from ..api.wire.plans import EvaluatorPlan
from ..api.wire.reports import Outcome
from .bucket import BucketError
from .journal import Journal
from .plan import Paths
from .provenance import PROVENANCE, encoded
from .report import write_report
from .reporting import Reporter
from .rollouts import Rollout
from .upload import Upload
from .verdict import MAX_OUTCOME_MESSAGE

log = logging.getLogger(__name__)


@dataclass
class Delivery:
    """Where one attempt's bundle goes. `upload` is there once the bucket has shown that it takes files."""

    plan: EvaluatorPlan
    paths: Paths
    report: Reporter
    upload: Upload | None = None

    @property
    def directory(self) -> Path:
        return self.paths.attempt(self.plan.attempt)

    async def check(self) -> None:
        """See that the job's bucket takes files, before anything is paid for. Raises `BucketError`."""
        if self.plan.upload is None:
            return
        upload = Upload(self.plan.upload, self.plan.attempt, self.paths.object_store)
        await upload.check(PROVENANCE, encoded(self.report.document()))
        self.report.warnings += upload.warnings
        self.upload = upload

    def keep_host_logs(self) -> None:
        """What hosts sent of their output, put beside Gym's other files once nothing makes that directory anew."""
        if self.report.registry is not None:
            self.report.warnings += self._copied(self.report.registry.logs.iterdir(), self.directory / GYM_RUN)

    async def bring(self, outcome: Outcome, rollouts: Sequence[Rollout], journal: Journal) -> Outcome:
        """Complete the bundle and upload it; what became of that is in the outcome returned."""
        self.report.write_provenance()
        await asyncio.to_thread(self._write_report, outcome, rollouts, journal)
        if self.upload is None:
            return outcome
        progress = self.report.progress
        progress.stage, progress.message = Stage.UPLOADING, f"uploading results to {self.upload.location}"
        # As they are now: what is uploaded must not grow meanwhile.
        lost = self._copied(self.paths.logs(), self.directory / "logs")
        outcome = outcome.model_copy(update={"warnings": [*outcome.warnings, *lost]})
        try:
            await self.upload.send(self.directory)
        except BucketError as error:
            return self._not_brought(outcome, error)
        return outcome.model_copy(update={"results_location": self.upload.location, "results_path": self.upload.path})

    def _copied(self, files: Iterable[Path], directory: Path) -> list[str]:
        """Logs into the bundle. A warning for each that could not be: no room for one must not cost the result."""
        lost = []
        for file in files:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, directory / file.name)
            except OSError as error:
                log.error("cannot copy %s to %s: %s", file, directory, error)
                lost.append(f"{file.name} is not in the bundle: {error.strerror}")
        return lost

    def _not_brought(self, outcome: Outcome, error: BucketError) -> Outcome:
        """Complete without the bundle in its place if a claim has it: then nothing is lost."""
        log.error("the bundle could not be uploaded: %s", error)
        words = f"the bundle could not be uploaded: {error}"[:MAX_OUTCOME_MESSAGE]
        update: dict[str, Any] = {"upload_failed": True}
        if outcome.state == "Failed":
            update["message"] = f"{outcome.message}; {words}"[:MAX_OUTCOME_MESSAGE]
        elif self.plan.results_location.startswith(CLAIM_LOCATION):
            update["degraded"] = [f"{words}; it is on {self.plan.results_location}", *outcome.degraded]
        else:
            update |= {"state": "Failed", "reason": RunReason.UPLOAD_FAILED, "message": words}
        return outcome.model_copy(update=update)

    def _write_report(self, outcome: Outcome, rollouts: Sequence[Rollout], journal: Journal) -> None:
        """Trouble is logged, not raised: the page is a view of what other files hold."""
        try:
            write_report(self.directory, f"{self.plan.namespace}/{self.plan.job}", outcome, rollouts, journal)
        except Exception:
            log.exception("report.html could not be completed")
