"""The record of finished jobs: one flat row per job and aggregate, read from the jobs' status alone.

A job that ended without a score has one row too, with an empty `aggregate`, so that no finished job is missing.
Numbers are in the units of whoever computed them (`unit`), and an aggregate that is a single number has `value` and
no statistics.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..api.conditions import FINAL
from ..api.wording import terminal_safe
from ..client.errors import UserError
from ..client.jobs import Body, Job
from .output import readable_json

Row = dict[str, Any]

COLUMNS: dict[str, type] = {
    "namespace": str,
    "job": str,
    "uid": str,
    "phase": str,
    "reason": str,
    "environment": str,
    "environmentDigest": str,
    "resourcesServer": str,
    "agent": str,
    "model": str,
    "dataset": str,
    "labels": str,
    "placement": str,
    "startTime": str,
    "completionTime": str,
    "done": int,
    "failed": int,
    "total": int,
    "coverage": float,
    "aggregate": str,
    "unit": str,
    "kind": str,
    "value": float,
    "count": int,
    "mean": float,
    "min": float,
    "max": float,
    "median": float,
    "stdDev": float,
    "sampleStdDev": float,
    "location": str,
    "path": str,
}
"""Column to type, in order; a cell without a value is None. `environment` is the name of what brings the environment's
code, or empty for a bundled one, which `resourcesServer` names. `labels` is `spec.labels` as one JSON object with
sorted keys, since labels may hold any text. `reason` is that of the condition that ended the job."""

_STATISTICS = ("count", "mean", "min", "max", "median", "stdDev", "sampleStdDev")


@dataclass(frozen=True)
class Wanted:
    """Which jobs are asked for. `environment` is compared with both the environment's and the resources server's name,
    `model` with the policy's model, and every one of `labels` must be in `spec.labels` with that value."""

    labels: Mapping[str, str] = field(default_factory=dict)
    environment: str | None = None
    model: str | None = None

    def takes(self, body: Body) -> bool:
        spec = body.get("spec") or {}
        labels = spec.get("labels") or {}
        return (
            all(labels.get(key) == value for key, value in self.labels.items())
            and self.environment in (None, *_environment_names(spec))
            and self.model in (None, _model(body))
        )


def record(bodies: Iterable[Body], wanted: Wanted | None = None) -> list[Row]:
    """Rows of all finished jobs that are wanted, in the order in which the jobs ended."""
    chosen = (Job(body) for body in bodies if wanted is None or wanted.takes(body))
    finished = sorted((job for job in chosen if job.finished), key=lambda job: (_ended(job), job.namespace, job.name))
    return [row for job in finished for row in rows_of(job)]


def rows_of(job: Job) -> list[Row]:
    """One row per aggregate of the job's status, in its order; one without an aggregate if there is none."""
    about = _about(job)
    return [
        dict.fromkeys(COLUMNS) | about | _aggregate(aggregate) for aggregate in job.status.get("aggregates") or [{}]
    ]


def write_csv(rows: Iterable[Row], out: IO[str]) -> None:
    """With a header line, also if there are no rows. Texts are whoever's that wrote the job: none steers a terminal,
    and none is a formula to a spreadsheet, which takes one that begins with `'` for a text."""
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in row.items()} for row in rows)


def _harmless(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = terminal_safe(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) or text.startswith("\t") else text


def write_parquet(rows: Iterable[Row], file: Path) -> None:
    """With the columns' types, also where a column is empty. Raises `UserError` where pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet needs the package pyarrow: `pip install pyarrow`, or write CSV instead.") from None
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    # The API server stores 1.0 as 1, which is an int here and a float there.
    typed = [{name: None if row[name] is None else COLUMNS[name](row[name]) for name in COLUMNS} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(typed, schema=schema), file)


def _about(job: Job) -> Row:
    spec, status = job.body.get("spec") or {}, job.status
    gym = (spec.get("target") or {}).get("gym") or {}
    progress, results = status.get("progress") or {}, status.get("results") or {}
    return {
        "namespace": job.namespace,
        "job": job.name,
        "uid": job.uid,
        "phase": job.phase,
        "reason": _end(job).get("reason"),
        "environment": _environment(gym),
        "environmentDigest": (status.get("ran") or {}).get("environmentDigest"),
        "resourcesServer": gym.get("resourcesServer"),
        "agent": gym.get("agent"),
        "model": _model(job.body),
        "dataset": _dataset(spec.get("tasks") or {}),
        "labels": readable_json(json.dumps(spec.get("labels") or {}, sort_keys=True, ensure_ascii=False)),
        "placement": status.get("placement"),
        "startTime": status.get("startTime"),
        "completionTime": status.get("completionTime"),
        **{count: progress.get(count) for count in ("done", "failed", "total")},
        "coverage": status.get("coverage"),
        "location": results.get("location"),
        "path": results.get("path"),
    }


def _aggregate(aggregate: Body) -> Row:
    names = {"aggregate": "name", "unit": "unit", "kind": "kind", "value": "value"}
    return {column: aggregate.get(name) for column, name in names.items()} | {
        name: aggregate.get(name) for name in _STATISTICS
    }


def _environment(gym: Body) -> str:
    """The name of whatever brings the code: `fileSet: {name: …}` today."""
    return next((name for name in (_name(source) for source in (gym.get("environment") or {}).values()) if name), "")


def _environment_names(spec: Body) -> tuple[str | None, ...]:
    gym = (spec.get("target") or {}).get("gym") or {}
    return _environment(gym) or None, gym.get("resourcesServer")


def _name(source: Any) -> str:
    return str(source.get("name") or "") if isinstance(source, dict) else ""


def _model(body: Body) -> str | None:
    """As the status names it; a job that was refused at once may have none there."""
    policy = next((model for model in (body.get("spec") or {}).get("models") or [] if model["name"] == "policy"), {})
    return (body.get("status") or {}).get("model") or policy.get("model")


def _dataset(tasks: Body) -> str:
    """Where the rows come from, in one line: `bundled/PATH`, `configMap/NAME/KEY`, `fileSet/NAME/PATH`."""
    sources = tasks.get("dataset") or {key: value for key, value in tasks.items() if isinstance(value, dict)}
    kind, source = next(iter(sources.items()), ("", {}))
    if not isinstance(source, dict):
        return f"{kind}/{source}"
    others = [str(value) for key, value in sorted(source.items()) if key != "name"]
    return "/".join(filter(None, [kind, _name(source), *others]))


def _end(job: Job) -> Body:
    """The condition that says how it ended."""
    conditions = job.status.get("conditions") or []
    return next((entry for entry in conditions if entry["type"] in FINAL and entry["status"] == "True"), {})


def _ended(job: Job) -> str:
    return job.status.get("completionTime") or ""
