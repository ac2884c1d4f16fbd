"""`kubectl nhx list`: jobs as a table, and the record of finished ones as CSV or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..api.outcome import REWARD
from ..client.errors import UsageProblem
from ..client.jobs import Body, Job
from .output import TableOutput, age, number, print_json, say, seconds_since, span, table
from .record import Wanted, record, rows_of, write_csv, write_parquet

_CSV, _PARQUET = ".csv", ".parquet"
_SHOWN_AGGREGATES = 2
_SHOWN = ("environment", "resourcesServer", "model", "coverage", "location")


def wanted(labels: Iterable[str], environment: str | None, model: str | None) -> Wanted:
    """`labels` as `KEY=VALUE`, of `spec.labels`."""
    pairs = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals or not key:
            raise UsageProblem(f"--label wants KEY=VALUE, not `{label}`.")
        pairs[key] = value
    return Wanted(pairs, environment, model)


def print_jobs(
    jobs: list[Job], chosen: Wanted, *, wide: bool, namespaces: bool, finished: bool, output: TableOutput, out: Console
) -> None:
    jobs = [job for job in jobs if chosen.takes(job.body) and (job.finished or not finished)]
    if output is TableOutput.CSV:
        write_csv(record(job.body for job in jobs), sys.stdout)
    elif output is TableOutput.JSON:
        print_json([_as_json(job) for job in jobs])
    elif jobs:
        out.print(_table(jobs, wide=wide, namespaces=namespaces))
    else:
        say(Console(stderr=True), "there are no such jobs")


def export(jobs: list[Job], chosen: Wanted, file: Path) -> Body:
    """Writes the record of the finished jobs; what was written, for the user."""
    rows = record((job.body for job in jobs), chosen)
    match file.suffix:
        case ".csv":
            with file.open("w", encoding="utf-8", newline="") as out:
                write_csv(rows, out)
        case ".parquet":
            write_parquet(rows, file)
        case _:
            raise UsageProblem(f"--export writes {_CSV} and {_PARQUET} files, by the name's end; `{file}` is neither.")
    return {"file": str(file), "rows": len(rows), "jobs": len({row["uid"] for row in rows})}


def _table(jobs: list[Job], *, wide: bool, namespaces: bool) -> Table:
    headings = ["NAME", "PHASE", "PROGRESS", "REWARD", "MODEL", "AGE"]
    if wide:
        headings += ["ENVIRONMENT", "LABELS", "COVERAGE", "TOOK", "WHY", "AGGREGATES", "RESULTS"]
    rows = []
    for job in jobs:
        status = job.status
        row = [job.name, job.phase, job.progress, status.get("reward") or "", _facts(job)["model"] or ""]
        row.append(age(job.body["metadata"].get("creationTimestamp")))
        if wide:
            row += _wide(job)
        rows.append([job.namespace, *row] if namespaces else row)
    return table(["NAMESPACE", *headings] if namespaces else headings, rows, right=("REWARD", "COVERAGE"))


def _wide(job: Job) -> list[str]:
    facts, status = _facts(job), job.status
    labels = (job.body.get("spec") or {}).get("labels") or {}
    started, ended = status.get("startTime"), status.get("completionTime")
    took = span(seconds_since(started) - seconds_since(ended)) if started and ended else ""
    return [
        facts["environment"] or facts["resourcesServer"] or "",
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        number(facts["coverage"]),
        took,
        job.cause.get("reason") or "",
        _other_aggregates(job),
        facts["location"] or "",
    ]


def _other_aggregates(job: Job) -> str:
    """The first ones beside the reward's own, and how many more there are: all of them are in an export."""
    others = [entry for entry in job.status.get("aggregates") or [] if entry["name"] != REWARD]
    shown = [f"{entry['name']}={number(entry.get('value'))}" for entry in others[:_SHOWN_AGGREGATES]]
    return ", ".join(shown) + (f" (+{len(others) - len(shown)})" if len(others) > len(shown) else "")


def _facts(job: Job) -> Body:
    """The record's own reading of a job, which holds for jobs that still run too."""
    return rows_of(job)[0]


def _as_json(job: Job) -> Body:
    facts, status = _facts(job), job.status
    return {
        "name": job.name,
        "namespace": job.namespace,
        "phase": job.phase,
        "reason": job.cause.get("reason"),
        "message": job.cause.get("message"),
        **{field: facts[field] for field in _SHOWN},
        "labels": (job.body.get("spec") or {}).get("labels") or {},
        "progress": status.get("progress"),
        "reward": status.get("reward"),
        "aggregates": status.get("aggregates") or [],
        "creationTime": job.body["metadata"].get("creationTimestamp"),
        "startTime": status.get("startTime"),
        "completionTime": status.get("completionTime"),
    }
