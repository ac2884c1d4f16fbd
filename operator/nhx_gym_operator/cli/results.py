"""`kubectl nhx results`: what `status` says about the rewards."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from ..client.errors import NotFound
from ..client.jobs import Body, Job
from .output import number, say, table
from .record import rows_of, write_csv

_STATISTICS = {"mean": "MEAN", "min": "MIN", "max": "MAX", "median": "MEDIAN", "stdDev": "STDDEV"}
_SHOWN = (
    "placement",
    "progress",
    "coverage",
    "aggregates",
    "aggregatesDropped",
    "usage",
    "egress",
    "results",
    "ran",
)


def results_of(job: Job) -> Body:
    """The status fields that hold results, under their own names, and why the job is where it is."""
    fields = {name: job.status[name] for name in _SHOWN if name in job.status}
    why = {name: job.cause.get(name) for name in ("reason", "message")}
    return {"name": job.name, "namespace": job.namespace, "phase": job.phase, **why, **fields}


def print_csv(job: Job) -> None:
    """A row for each aggregate, as `kubectl nhx list --export` has them."""
    require_score(job)
    write_csv(rows_of(job), sys.stdout)


def print_results(job: Job, console: Console) -> None:
    require_score(job)
    console.print(aggregate_table(job.status["aggregates"]))
    for line in _notes(job):
        say(console, line)


def aggregate_table(aggregates: list[dict[str, Any]]) -> Table:
    numbers = ("VALUE", "COUNT", *_STATISTICS.values())
    return table(("NAME", "UNIT", *numbers), (_row(aggregate) for aggregate in aggregates), right=numbers)


def _row(aggregate: dict[str, Any]) -> list[str]:
    words = [aggregate["name"], aggregate.get("unit") or "", number(aggregate.get("value"))]
    return [*words, str(aggregate.get("count") or ""), *(number(aggregate.get(field)) for field in _STATISTICS)]


def require_score(job: Job) -> None:
    """Raises `NotFound` for a job without one, and says why it has none."""
    if not job.status.get("aggregates"):
        raise NotFound(_none_yet(job))


def _none_yet(job: Job) -> str:
    if not job.finished:
        progress = f" {job.progress} rollouts are recorded;" if job.progress else ""
        return (
            f"job `{job.name}` has no results yet ({job.says}).{progress} "
            f"`kubectl nhx watch {job.name} --namespace {job.namespace}` follows it."
        )
    return (
        f"job `{job.name}` ended without a score ({job.says}). "
        f"`kubectl nhx explain {job.name} --namespace {job.namespace}` says what to do."
    )


def _notes(job: Job) -> list[str]:
    status = job.status
    results = status.get("results") or {}
    notes = ["", f"{job.says} (coverage {number(status.get('coverage')) or 'unknown'})"]
    if status.get("aggregatesDropped"):
        notes.append(f"{status['aggregatesDropped']} more aggregates are in summary.json of the bundle")
    if results.get("location"):
        notes.append(f"bundle: {results['location']}, directory {job.results_path}")
    notes += [_usage(name, usage) for name, usage in (status.get("usage") or {}).items()]
    if job.egress:
        notes.append(job.egress)
    notes.append("gym_reward.reward is on 0-1; names under runner.gym. are in the environment's own units")
    return notes


def _usage(name: str, usage: dict[str, Any]) -> str:
    took, latency = "", usage.get("latencySeconds")
    if latency:
        took = f"; half of the calls took {latency['p50']:.2g} s at most, 99 of 100 {latency['p99']:.2g} s"
    aborted = f", {usage['abortedCalls']} left by their caller" if usage.get("abortedCalls") else ""
    return (
        f"model {name}: {usage.get('calls', 0)} calls, {usage.get('failedCalls', 0)} failed{aborted}, "
        f"{usage.get('inputTokens', 0)} tokens in, {usage.get('outputTokens', 0)} out{took}"
    )
