"""`kubectl nhx`: results, logs and bundles of AgentEvalJobs, through the user's own kubectl."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..client.download import download as copy_bundle
from ..client.jobs import get_job
from ..client.kubectl import Kubectl, UserError
from .logs import Follower, Part, print_logs
from .results import print_results, results_json

INTERRUPTED = 130
"""The exit code of a shell command that Ctrl-C ended."""
_WIDE = 200

app = typer.Typer(
    name="kubectl-nhx",
    help="Results, logs and bundles of AgentEvalJobs. Uses your kubectl (or the one KUBECTL names) and your rights.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the AgentEvalJob.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the job.")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig to use.")]
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Path of the kubeconfig to use.")]


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.command()
def download(
    job: JobName,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An empty or new directory.")],
    image: Annotated[str | None, typer.Option(help="Reader pod's image, once the evaluator pod is gone.")] = None,
    lifetime: Annotated[
        int, typer.Option(min=60, max=86400, help="Seconds until the reader pod ends by itself.")
    ] = 1800,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Copy a job's result bundle into DIR.

    A short-lived pod mounts the job's claim read-only; it is removed afterwards. Nothing in DIR is overwritten.
    """
    with _reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        files = copy_bundle(kubectl, get_job(kubectl, job), directory, image, lifetime, Console(stderr=True))
        typer.echo(f"{files} files in {directory}")


@app.command()
def logs(
    job: JobName,
    role: Annotated[Part | None, typer.Option(help="Only the logs of this part of the job.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the job has finished.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only this many last lines of each container.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the logs of a job's evaluator and hosts, also after it failed."""
    with _reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        found = get_job(kubectl, job)
        if follow:
            Follower(kubectl, found, role, tail, typer.echo).run()
        else:
            print_logs(kubectl, found, role, tail, typer.echo)


@app.command()
def results(
    job: JobName,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print them.")] = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print a job's aggregates: rewards on 0-1, and the environment's own numbers in its own units."""
    with _reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        found = get_job(kubectl, job)
        if output is Output.JSON:
            typer.echo(results_json(found))
        else:
            # A pipe has no width: never fold a table that another program reads.
            console = Console()
            print_results(found, console if console.is_terminal else Console(width=_WIDE))


@contextmanager
def _reported() -> Iterator[None]:
    """Errors as one line without a traceback, and a SIGTERM that still lets everything be cleaned up."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
