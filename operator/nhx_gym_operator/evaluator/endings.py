"""Which end of the job an error is, in a user's words where it has a name."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

from ..api.conditions import RunReason
from ..api.rows import DatasetError
from ..in_pods.mounted import SecretError
from .bucket import BucketError
from .errors import JobFailed
from .journal import ForeignJournal, JournalError
from .sources.errors import StagingError
from .trust import NoCertificates

log = logging.getLogger(__name__)


def end_by(error: Exception, volume: Path, location: str) -> JobFailed:
    """The job's end. `location` is the results volume in a user's words."""
    full = _full_volume(error, volume, location)
    if full is not None:
        return full
    match error:
        case JobFailed():
            return error
        case DatasetError():
            return JobFailed(error.reason, str(error))
        case BucketError():
            return JobFailed(RunReason.UPLOAD_FAILED, str(error))
        case ForeignJournal():
            return JobFailed(RunReason.RESULTS_NOT_FRESH, str(error))
        case SecretError() | NoCertificates() | StagingError() | JournalError():
            return JobFailed(RunReason.EVALUATION_FAILED, str(error))
    log.error("the evaluation ended with an error of its own", exc_info=error)
    return JobFailed(RunReason.EVALUATION_FAILED, f"{type(error).__name__}: {error}")


def _full_volume(error: BaseException | None, volume: Path, location: str) -> JobFailed | None:
    while error is not None and getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
        error = error.__cause__
    if error is None:
        return None
    file = getattr(error, "filename", None)  # not known of a file that was open already, as the journal is
    if isinstance(file, str) and not Path(file).is_relative_to(volume):
        return None
    try:
        total, _, free = shutil.disk_usage(volume)
        size = f" ({total / (1 << 30):.2g} GiB in all, {free / (1 << 20):.0f} MiB free)"
    except OSError:
        size = ""
    message = f"{location}, which holds the results, is full{size}: {error}; what was recorded before is kept there"
    return JobFailed(RunReason.RESULTS_VOLUME_FULL, message)
