"""`kubectl nhx`: AgentEvalJobs from submission to results, through the user's own kubectl."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from ..api.constants import Phase
from ..api.job import MAX_HOSTS
from ..client.download import download as copy_bundle
from ..client.errors import UsageProblem, UserError
from ..client.jobs import Job, find_job, get_job, get_jobs
from ..client.kubectl import Kubectl
from ..submission.gym_version import version_warning
from . import cancel as cancelling
from . import exits, listing, report, results, submit
from .completion import files, job_names, namespaces
from .exits import ExitCode
from .explain import explain, print_explanation
from .logs import Follower, JsonSink, Part, TextSink, are_gone, print_bundle_logs, print_logs
from .output import Output, TableOutput, console, parse_span, print_json, say
from .watch import watch as watch_job

app = typer.Typer(
    name="kubectl-nhx",
    help="Run NeMo Gym evaluations on Kubernetes and read their results. Uses your kubectl (or the one that KUBECTL "
    "names), its context and namespace, and your rights.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", autocompletion=job_names)]
JobNames = Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs.", autocompletion=job_names)]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the job.", autocompletion=namespaces)
]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig to use.")]
Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", help="Path of the kubeconfig to use.", autocompletion=files)
]
How = Annotated[Output, typer.Option("--output", "-o", help="For people or for programs.")]
HowRows = Annotated[TableOutput, typer.Option("--output", "-o", help="For people or for programs.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SPAN", parser=parse_span, help="Wait no longer: 90s, 30m, 1h30m."),
]
Image = Annotated[
    str | None, typer.Option(help="Image of the pod that reads the claim, where the job no longer tells its own.")
]


def main() -> None:
    """As kubectl calls it."""
    app(prog_name="kubectl nhx")


@app.command("submit")
def submit_command(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="A manifest with one job in it, or a spec file such as gym_agent_eval.json; - is standard input.",
            autocompletion=files,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job. Default: made from the resources server.")] = None,
    resources_server: Annotated[str | None, typer.Option(help="Sets the tasks and scores them, e.g. mcqa.")] = None,
    agent: Annotated[str | None, typer.Option(help="Collects the rollouts, e.g. simple_agent.")] = None,
    agent_config: Annotated[str | None, typer.Option(metavar="PATH", help="The agent's file in NeMo Gym.")] = None,
    agent_ref_name: Annotated[str | None, typer.Option(help="The agent's name in the environment.")] = None,
    model_type: Annotated[str | None, typer.Option(help="inference_provider, openai_model or vllm_model.")] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILESET",
            help="Brings code of your own: a folder of this machine (with a slash, ./mine), or a FileSet's name.",
            autocompletion=files,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS",
            autocompletion=files,
            help="A row file of this machine, or bundled:PATH, configmap:NAME/KEY, fileset:NAME/PATH, pvc:CLAIM/PATH.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows.")] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="The model's endpoint, ends in /v1.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name there.")] = None,
    api_key: Annotated[str | None, typer.Option(metavar="SECRET/KEY", help="Where its key stands.")] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="REF=SECRET/KEY", help="Where a spec file's secret stands; repeatable."),
    ] = None,
    num_repeats: Annotated[int | None, typer.Option(min=1, help="Rollouts per row.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Rollouts at once.")] = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, max=MAX_HOSTS, help="Gym hosts that share the rollouts; needs a sandbox.")
    ] = None,
    startup_timeout: Annotated[
        float | None, typer.Option(metavar="SPAN", parser=parse_span, help="Time for Gym to start, e.g. 240s.")
    ] = None,
    collection_timeout: Annotated[
        float | None, typer.Option(metavar="SPAN", parser=parse_span, help="Time for all rollouts, e.g. 2h.")
    ] = None,
    hydra_param: Annotated[
        list[str] | None, typer.Option(metavar="A.B=VALUE", help="Into Gym's configuration; repeatable.")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option("--results", metavar="SIZE", help="A claim of this size (1Gi), claim:NAME, or none."),
    ] = None,
    min_coverage: Annotated[float | None, typer.Option(min=0, max=1, help="Share that must have a reward.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Tag of the run; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Watch it to its end; the exit code says which.")] = False,
    timeout: Timeout = None,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Start a job, from a manifest, from a spec file, or from flags.

    A manifest may hold what the job names beside it (FileSets, ConfigMaps). With a spec file, flags may say where the
    rows, the policy model and the results are. A job of that name is never overwritten.
    """
    with _reported():
        _refuse_timeout_alone(timeout, wait)
        flags = submit.Flags(
            agent=agent,
            agent_config=agent_config,
            agent_ref_name=agent_ref_name,
            resources_server=resources_server,
            model_type=model_type,
            environment=environment,
            num_repeats=num_repeats,
            concurrency=concurrency,
            hosts=hosts,
            startup_timeout=startup_timeout,
            collection_timeout=collection_timeout,
            hydra_param=hydra_param or [],
            dataset=dataset,
            limit=limit,
            base_url=base_url,
            model=model,
            api_key=api_key,
            results=keep,
            min_coverage=min_coverage,
            label=label or [],
        )
        submission = (
            submit.from_file(file, flags, name, namespace, secret or []) if file else submit.from_flags(flags, name)
        )
        if dry_run:
            _print_manifest(submission, output)
            return
        if submission.warn_of_gym and (warning := version_warning()):
            say(Console(stderr=True), f"warning: {warning}")
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        job = submit.send(kubectl, submission)
        if not wait:
            _tell_submitted(job, output)
            return
        say(Console(stderr=True), f"job {job.name} was submitted to namespace {job.namespace}")
        made = [entry["metadata"]["name"] for entry in submission.own]
        _end_with(_watched(kubectl.in_namespace(job.namespace), job.name, timeout, output, made))


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
    with _reported():
        _end_with(_watched(Kubectl.find(kubeconfig, context, namespace), job, timeout, output))


@app.command("explain")
def explain_command(
    job: JobName,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Say why a job is where it is, and what to do about it."""
    with _reported():
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
    with _reported():
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
    with _reported():
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
    with _reported():
        kubectl = Kubectl.find(kubeconfig, context, namespace)
        found = find_job(kubectl, job)
        sink = JsonSink() if output is Output.JSON else TextSink()
        if are_gone(kubectl, found):
            print_bundle_logs(kubectl, found, role, tail, sink, image, Console(stderr=True))
        elif follow:
            Follower(kubectl, found, role, tail, sink).run()
        else:
            print_logs(kubectl, found, role, tail, sink)


@app.command()
def download(
    job: JobName,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An empty or new directory.", autocompletion=files)],
    image: Image = None,
    lifetime: Annotated[
        int, typer.Option(min=60, max=86400, help="Seconds until the reader pod ends by itself.")
    ] = 1800,
    output: How = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Copy a job's result bundle into DIR.

    A short-lived pod mounts the job's claim read-only; it is removed afterwards. Nothing in DIR is overwritten.
    """
    with _reported():
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
    with _reported():
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
    with _reported():
        _refuse_timeout_alone(timeout, wait)
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
            _tell(f"error: {error}", error)
        if errors:
            raise errors[-1]


def _refuse_timeout_alone(timeout: float | None, wait: bool) -> None:
    if timeout is not None and not wait:
        raise UsageProblem("--timeout bounds what --wait waits for; give both, or neither.")


def _watched(kubectl: Kubectl, name: str, timeout: float | None, output: Output, made: Collection[str] = ()) -> Job:
    errors = Console(stderr=True)
    job = watch_job(
        kubectl,
        name,
        timeout=timeout,
        as_json=output is Output.JSON,
        console=console(),
        errors=errors,
        made=made,
    )
    more = "results" if job.phase == Phase.SUCCEEDED else "explain"
    say(errors, f"`kubectl nhx {more} {job.name} --namespace {job.namespace}` shows more")
    return job


def _end_with(job: Job) -> None:
    raise typer.Exit(exits.of_end(job))


def _tell_submitted(job: Job, output: Output) -> None:
    if output is Output.JSON:
        print_json({"name": job.name, "namespace": job.namespace, "uid": job.uid})
    else:
        typer.echo(f"job {job.name} was submitted to namespace {job.namespace}")
        typer.echo(f"`kubectl nhx watch {job.name} --namespace {job.namespace}` follows it")


def _print_manifest(submission: submit.Submission, output: Output) -> None:
    if output is Output.JSON:
        print_json({"apiVersion": "v1", "kind": "List", "items": submission.objects})
    else:
        typer.echo(yaml.dump_all(submission.objects, Dumper=_Readable, sort_keys=False, allow_unicode=True), nl=False)


class _Readable(yaml.SafeDumper):
    """Writes text of several lines line by line: rows and source files are to be read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


@contextmanager
def _reported() -> Iterator[None]:
    """Errors as one line without a traceback, and a SIGTERM that still lets everything be cleaned up."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except UserError as error:
        _tell(f"error: {error}", error)
        raise typer.Exit(exits.of_error(error)) from None
    except BrokenPipeError:
        # `… | head`: whoever read has enough, and typer ends quietly.
        raise
    except OSError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(ExitCode.ERROR) from None
    except KeyboardInterrupt as error:
        _tell("interrupted", error)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _tell(line: str, error: BaseException) -> None:
    for text in (line, *getattr(error, "__notes__", ())):
        typer.echo(text, err=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
