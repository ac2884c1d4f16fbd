"""`kubectl nhx`: AgentEvalJobs from submission to results, through the user's own kubectl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..client.download import download as copy_bundle
from ..client.errors import UserError
from ..client.jobs import find_job, get_job, get_jobs
from ..client.kubectl import Kubectl
from ..client.reader import WHOLE_BUNDLE_SECONDS
from . import cancel as cancelling
from . import exits, listing, report, results
from .completion import files
from .explain import explain, print_explanation
from .logs import Follower, JsonSink, Part, TextSink, are_gone, print_bundle_logs, print_logs
from .options import (
    Context,
    How,
    HowRows,
    Image,
    JobName,
    JobNames,
    Kubeconfig,
    Namespace,
    Timeout,
    refuse_timeout_alone,
)
from .output import Output, TableOutput, console, print_json, say
from .submit_command import submit_command
from .watch import watch_to_end

app = typer.Typer(
    name="kubectl-nhx",
    help="Run NeMo Gym evaluations on Kubernetes and read their results. Uses your kubectl (or the one that KUBECTL "
    "names), its context and namespace, and your rights.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("submit")(submit_command)


def main() -> None:
    """As kubectl calls it."""
    app(prog_name="kubectl nhx")


@app.command()
def watch(
    job: JobName,
    timeout: Timeout = None,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Follow a job to its end: rollouts, reward so far, and which pod does what.

    The exit code says how it ended: 0 succeeded, 5 failed, 6 cancelled, 7 the time is up.
    """
    with exits.reported():
        exits.with_end_of(watch_to_end(Kubectl.find(kubeconfig, context, namespace), job, timeout, output))


@app.command("explain")
def explain_command(
    job: JobName,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Say why a job is where it is, and what to do about it."""
    with exits.reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        found = explain(kubectl, get_job(kubectl, job))
        if output is Output.JSON:
            print_json(found.to_dict())
        else:
            print_explanation(found, console())


@app.command("list")
def list_command(
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="More columns.")] = False,
    finished: Annotated[bool, typer.Option("--finished", help="Only jobs that have ended.")] = False,
    environment: Annotated[str | None, typer.Option(help="Only of this environment or resources server.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only with this tag in spec.labels; repeatable.")
    ] = None,
    selector: Annotated[str | None, typer.Option("--selector", "-l", help="Only with these Kubernetes labels.")] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all aggregates of all finished jobs to FILE.csv or FILE.parquet.",
            autocompletion=files,
        ),
    ] = None,
    output: HowRows = TableOutput.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List jobs, or export the record of all that have ended, from their status alone.

    The record (--export, or --output csv) has a row for each job and aggregate.
    """
    with exits.reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        chosen = listing.wanted(label or [], environment, model)
        jobs = get_jobs(kubectl, all_namespaces=all_namespaces, selector=selector)
        if export is None:
            listing.print_jobs(
                jobs, chosen, wide=wide, namespaces=all_namespaces, finished=finished, output=output, out=console()
            )
            return
        written = listing.export(jobs, chosen, export)
        if output is TableOutput.JSON:
            print_json(written)
        else:
            typer.echo(f"{written['rows']} rows of {written['jobs']} finished jobs in {written['file']}")


@app.command("results")
def results_command(
    job: JobName,
    output: HowRows = TableOutput.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print a job's aggregates: rewards on 0-1, and the environment's own numbers in its own units."""
    with exits.reported():
        found = get_job(Kubectl.find(kubeconfig, context, namespace), job)
        match output:
            case TableOutput.JSON:
                print_json(results.results_of(found))
                results.require_score(found)
            case TableOutput.CSV:
                results.print_csv(found)
            case _:
                results.print_results(found, console())


@app.command()
def logs(
    job: JobName,
    role: Annotated[Part | None, typer.Option(help="Only the logs of this part of the job.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the job has ended.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only this many last lines of each container.")] = None,
    image: Image = None,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the logs of a job's evaluator and hosts, also after it failed.

    Once its pods are gone, the logs that are kept with its results are printed: the evaluator's and the host's.
    """
    with exits.reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        found = find_job(kubectl, job)
        sink = JsonSink() if output is Output.JSON else TextSink()
        if are_gone(kubectl, found):
            print_bundle_logs(kubectl, found, role, tail, sink, image, Console(stderr=True))
        elif follow:
            Follower(kubectl, found, role, tail, sink).run()
        else:
            print_logs(kubectl, found, role, tail, sink, image, Console(stderr=True))


@app.command()
def download(
    job: JobName,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An empty or new directory.", autocompletion=files)],
    image: Image = None,
    lifetime: Annotated[
        int, typer.Option(min=60, max=86400, help="Seconds until the reader pod ends by itself.")
    ] = WHOLE_BUNDLE_SECONDS,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Copy a job's result bundle into DIR.

    A short-lived pod mounts the job's claim read-only; it is removed afterwards. Nothing in DIR is overwritten.
    """
    with exits.reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        files = copy_bundle(kubectl, find_job(kubectl, job), directory, image, lifetime, Console(stderr=True))
        if output is Output.JSON:
            print_json({"name": job, "directory": str(directory), "files": files})
        else:
            typer.echo(f"{files} files in {directory}")


@app.command("report")
def report_command(
    job: JobName,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep it there. Default: a temporary file.", autocompletion=files),
    ] = None,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Show it in the browser.")] = True,
    image: Image = None,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Open a finished job's report.html in the browser. It needs no network."""
    with exits.reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        found = report.fetch(kubectl, find_job(kubectl, job), file, image, Console(stderr=True))
        if output is Output.JSON:
            print_json({"name": job, "report": str(found)})
            return
        typer.echo(str(found))
        if opened and not report.show(found):
            say(Console(stderr=True), "there is no browser here; open that file in one")


@app.command("cancel")
def cancel_command(
    jobs: JobNames,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the jobs have ended.")] = False,
    timeout: Timeout = None,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """End jobs. What they have recorded is kept; it cannot be taken back.

    A job that has ended already is left as it is.
    """
    with exits.reported():
        refuse_timeout_alone(timeout, wait)
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        told, errors = [], []
        for found in cancelling.cancel(kubectl, jobs, wait=wait, timeout=timeout):
            if isinstance(found, UserError):
                errors.append(found)
                continue
            told.append(found.to_dict())
            if output is Output.TABLE:
                typer.echo(found.sentence)
        if output is Output.JSON:
            print_json(told)
        for error in errors[:-1]:
            exits.tell(f"error: {error}", error)
        if errors:
            raise errors[-1]
