"""`kubectl nhx submit` as it is typed: its flags, and what it prints. What becomes of them is in `submit.py`."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml
from rich.console import Console

from ..api.constants import MAX_HOSTS, MAX_RETRIES
from ..client.jobs import Job
from ..client.kubectl import Kubectl
from ..submission.gym_version import version_warning
from . import exits, submit
from .completion import files
from .options import Context, How, Kubeconfig, Namespace, Timeout, refuse_timeout_alone
from .output import Output, parse_span, print_json, say
from .watch import watch_to_end


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
    retry_failed: Annotated[
        int | None, typer.Option(min=0, max=MAX_RETRIES, help="How many more times a failed rollout is run.")
    ] = None,
    backoff_limit: Annotated[
        int | None, typer.Option(min=0, help="Lost attempts, and pods of each host, that are made good.")
    ] = None,
    failure_rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACTION=KIND,...",
            help="What a failure of a kind means: FailJob=model, Ignore=Evicted,Preempted. Repeatable; the first that "
            "fits counts.",
        ),
    ] = None,
    active_deadline: Annotated[
        float | None, typer.Option(metavar="SPAN", parser=parse_span, help="End the job so long after its start.")
    ] = None,
    starting_deadline: Annotated[
        float | None,
        typer.Option(metavar="SPAN", parser=parse_span, help="End it if its pods have not started by then."),
    ] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(metavar="SPAN", parser=parse_span, help="End a collection in which nothing happens.")
    ] = None,
    ttl_after_finished: Annotated[
        float | None, typer.Option(metavar="SPAN", parser=parse_span, help="Delete the job so long after its end.")
    ] = None,
    suspend: Annotated[bool, typer.Option("--suspend", help="Make it, and give it no pods yet.")] = False,
    cost_limit: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT=N", help="The most it may spend: tokens=2000000, calls=500. Repeatable."),
    ] = None,
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
    rows, the policy model and the results are, and how the job runs on the cluster. A job of that name is never
    overwritten.
    """
    with exits.reported():
        refuse_timeout_alone(timeout, wait)
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
            retry_failed=retry_failed,
            backoff_limit=backoff_limit,
            failure_rule=failure_rule or [],
            active_deadline=active_deadline,
            starting_deadline=starting_deadline,
            idle_timeout=idle_timeout,
            ttl_after_finished=ttl_after_finished,
            suspend=suspend or None,
            cost_limit=cost_limit or [],
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
        exits.with_end_of(watch_to_end(kubectl.in_namespace(job.namespace), job.name, timeout, output, made))


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
