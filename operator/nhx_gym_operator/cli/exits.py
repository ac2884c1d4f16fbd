"""The exit codes of `kubectl nhx`, for scripts. They are part of the interface: new ones may come, none changes."""

from __future__ import annotations

from enum import IntEnum

from ..api.constants import Phase
from ..client.errors import KubectlError, NotFound, Refused, TimedOut, UsageProblem, UserError
from ..client.jobs import Job


class ExitCode(IntEnum):
    """What a command ends with."""

    DONE = 0
    """Done. Of `watch` and of `submit --wait`: the job succeeded."""
    ERROR = 1
    """Something else went wrong: no kubectl, no cluster, a copy that broke off."""
    USAGE = 2
    """The command line, or the file that it names, cannot be used. Nothing was sent."""
    NOT_FOUND = 3
    """No such job; or the job has no results, no logs, no bundle."""
    REFUSED = 4
    """The cluster refused: the job is not valid, its name is taken, or a right is missing."""
    JOB_FAILED = 5
    """`watch`, `submit --wait`: the job failed."""
    JOB_CANCELLED = 6
    """`watch`, `submit --wait`: the job was cancelled."""
    TIMEOUT = 7
    """`--timeout` passed. The job goes on."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM, as the shell has it. A job that was submitted goes on; one that was about to be is removed."""


def of_error(error: UserError) -> ExitCode:
    if isinstance(error, UsageProblem):
        return ExitCode.USAGE
    if isinstance(error, NotFound) or (isinstance(error, KubectlError) and error.not_found):
        return ExitCode.NOT_FOUND
    if isinstance(error, Refused) or (isinstance(error, KubectlError) and error.refused):
        return ExitCode.REFUSED
    if isinstance(error, TimedOut):
        return ExitCode.TIMEOUT
    return ExitCode.ERROR


def of_end(job: Job) -> ExitCode:
    """Of a job that has ended."""
    return {
        Phase.SUCCEEDED: ExitCode.DONE,
        Phase.FAILED: ExitCode.JOB_FAILED,
        Phase.CANCELLED: ExitCode.JOB_CANCELLED,
    }[Phase(job.phase)]
