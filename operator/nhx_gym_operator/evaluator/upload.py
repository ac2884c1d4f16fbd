"""The finished bundle's way to the job's bucket."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ..api.outcome import trimmed
from ..api.wire.mounts import attempt_dir
from ..api.wire.plans import UploadPlan
from .bucket import BucketError, BundleBucket

FIELD = "spec.results.objectStore"
CHECK_RETRY_S = 20.0
"""Before the first rollout a server that is away is soon said to be: waiting costs nothing later."""
_LAST = "summary.json"
"""Whoever finds it in the bucket finds all the rest."""

log = logging.getLogger(__name__)


class Upload:
    """Where one attempt's bundle goes. Raises `BucketError` for credentials that cannot be read."""

    def __init__(self, plan: UploadPlan, attempt: int, credentials: Path) -> None:
        self._bucket = BundleBucket(plan.address, credentials, FIELD)
        self._impatient = BundleBucket(plan.address, credentials, FIELD, CHECK_RETRY_S)
        self.warnings = [trimmed(field) for field in self._bucket.trimmed]
        self._timeout_s = plan.timeout_s
        self.location = plan.address.location
        self.path = f"{plan.folder}/{attempt_dir(attempt)}"

    async def check(self, name: str, content: bytes) -> None:
        """Put one small file of the bundle there: a bucket that takes nothing is to be known before rollouts are paid
        for. Raises `BucketError`."""
        await self._bounded(self._impatient, {f"{self.path}/{name}": content})

    async def send(self, directory: Path) -> None:
        """Put everything below `directory` there, and see that it is. Raises `BucketError`."""
        files = await asyncio.to_thread(_files, directory)
        log.info("uploading %d files to %s/%s", len(files), self.location, self.path)
        await self._bounded(self._bucket, {f"{self.path}/{name}": file for name, file in files.items()})
        log.info("uploaded")

    async def _bounded(self, bucket: BundleBucket, files: dict[str, Path | bytes]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await bucket.put(files)
        except TimeoutError:
            raise BucketError(
                f"the upload to {self.location} did not end within {self._timeout_s:g} s ({FIELD}.timeoutSeconds)"
            ) from None


def _files(directory: Path) -> dict[str, Path]:
    """Path below the directory to file, the summary last."""
    found = {file.relative_to(directory).as_posix(): file for file in directory.rglob("*") if file.is_file()}
    return dict(sorted(found.items(), key=lambda item: (item[0] == _LAST, item[0])))
