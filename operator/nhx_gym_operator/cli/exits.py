"""How a command ends: its exit code, and its error in words."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from ..api.constants import Phase
from ..api.wording import terminal_safe
from ..client.errors import KubectlError, NotFound, Refused, TimedOut, UsageProblem, UserError
from ..client.jobs import Job


class ExitCode(IntEnum):
    """For scripts. They are part of the interface: new ones may come, none changes."""

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


def with_end_of(job: Job) -> None:
    raise typer.Exit(of_end(job))


@contextmanager
def reported() -> Iterator[None]:
    """Errors as one line without a traceback, and a SIGTERM that still lets everything be cleaned up."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except UserError as error:
        tell(f"error: {error}", error)
        raise typer.Exit(of_error(error)) from None
    except BrokenPipeError:
        # `… | head`: whoever read has enough, and typer ends quietly.
        raise
    except OSError as error:
        tell(f"error: {error}", error)
        raise typer.Exit(ExitCode.ERROR) from None
    except KeyboardInterrupt as error:
        tell("interrupted", error)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def tell(line: str, error: BaseException) -> None:
    for text in (line, *getattr(error, "__notes__", ())):
        typer.echo(terminal_safe(text), err=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
