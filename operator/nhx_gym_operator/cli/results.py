"""`kubectl nhx results`: what `status` says about the rewards."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..client.jobs import Job
from ..client.kubectl import UserError

_STATISTICS = {"mean": "MEAN", "min": "MIN", "max": "MAX", "median": "MEDIAN", "stdDev": "STDDEV"}
_SHOWN = ("phase", "placement", "progress", "coverage", "aggregates", "aggregatesDropped", "usage", "results", "ran")


def results_json(job: Job) -> str:
    """The status fields that hold results, under their own names."""
    fields = {name: job.status[name] for name in _SHOWN if name in job.status}
    return json.dumps({"name": job.name, "namespace": job.namespace, **fields}, indent=2)


def print_results(job: Job, console: Console) -> None:
    aggregates = job.status.get("aggregates") or []
    if not aggregates:
        raise UserError(_none_yet(job))
    console.print(aggregate_table(aggregates))
    for line in _notes(job):
        console.print(line, markup=False, highlight=False)


def aggregate_table(aggregates: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("NAME", no_wrap=True)
    table.add_column("UNIT")
    for heading in ("VALUE", "COUNT", *_STATISTICS.values()):
        table.add_column(heading, justify="right")
    for aggregate in aggregates:
        count = str(aggregate.get("count") or "")
        numbers = [_number(aggregate.get("value")), count, *(_number(aggregate.get(field)) for field in _STATISTICS)]
        # Text, since names such as `pass@1[avg-of-2]` would be read as markup.
        table.add_row(*(Text(cell) for cell in (aggregate["name"], aggregate.get("unit") or "", *numbers)))
    return table


def _number(value: float | None) -> str:
    # The API server stores 80.0 as 80.
    return "" if value is None else str(round(float(value), 4))


def _none_yet(job: Job) -> str:
    if not job.finished:
        progress = f" {job.progress} rollouts are recorded;" if job.progress else ""
        return (
            f"job `{job.name}` has no results yet ({job.says}).{progress} "
            f"`kubectl get aej {job.name} --namespace {job.namespace} --watch` follows it."
        )
    return (
        f"job `{job.name}` ended without a score ({job.says}). "
        f"`kubectl nhx logs {job.name} --namespace {job.namespace}` shows why."
    )


def _notes(job: Job) -> list[str]:
    status = job.status
    results = status.get("results") or {}
    notes = ["", f"{job.says} (coverage {_number(status.get('coverage')) or 'unknown'})"]
    if status.get("aggregatesDropped"):
        notes.append(f"{status['aggregatesDropped']} more aggregates are in summary.json of the bundle")
    if results.get("location"):
        notes.append(f"bundle: {results['location']}, directory {job.results_path}")
    notes += [_usage(name, usage) for name, usage in (status.get("usage") or {}).items()]
    notes.append("gym_reward.reward is on 0-1; names under runner.gym. are in the environment's own units")
    return notes


def _usage(name: str, usage: dict[str, int]) -> str:
    return (
        f"model {name}: {usage.get('calls', 0)} calls, {usage.get('failedCalls', 0)} failed, "
        f"{usage.get('inputTokens', 0)} tokens in, {usage.get('outputTokens', 0)} out"
    )
