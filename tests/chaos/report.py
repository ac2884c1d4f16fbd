"""The figures of a run: as JSON for programs, as a table for people."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from chaos.plan import Kind
from chaos.played import Hit, Played

FOLDER = Path(__file__).resolve().parents[2] / "build"


def figures(played: Played) -> dict[str, Any]:
    plan, jobs = played.plan, len(played.plan.jobs)
    by_kind = {}
    for kind in Kind:
        hits = [hit for hit in played.hits if hit.fault.kind is kind]
        seconds = sorted(hit.seconds for hit in hits if hit.is_timed and hit.seconds is not None)
        if hits:
            by_kind[kind.value] = {
                "faults": len(hits),
                **_collected(hits),
                "timed": len(seconds),
                "recoverySecondsP50": _percentile(seconds, 0.5),
                "recoverySecondsP99": _percentile(seconds, 0.99),
            }
    collected = _collected(played.hits)
    return {
        "seed": plan.seed,
        "jobs": jobs,
        "jobsByPlacement": dict(Counter(job.where.value for job in plan.jobs)),
        "phases": dict(Counter(played.phases.values())),
        "seconds": round(played.seconds, 1),
        "rollouts": played.rollouts,
        "modelCalls": played.calls,
        "faults": by_kind,
        "countedLosses": collected["counted"],
        "unfinishedAtLosses": collected["unfinished"],
        "collectedAgain": collected["collected"],
        "apiWrites": played.writes,
        "apiWritesPerJob": round(sum(played.writes.values()) / jobs, 1),
        "problems": played.problems,
        "hits": [
            {
                "kind": hit.fault.kind.value,
                "job": hit.fault.job,
                "after": hit.fault.after,
                "how": hit.fault.how,
                "recorded": len(hit.recorded),
                "unfinished": len(hit.unfinished),
                "collected": len(hit.collected) if hit.is_counted else None,
                "recoverySeconds": None if hit.seconds is None else round(hit.seconds, 2),
                "isTimed": hit.is_timed,
            }
            for hit in played.hits
        ],
    }


def _collected(hits: list[Hit]) -> dict[str, int]:
    """Of those losses alone after which the model counts what is collected: elsewhere nothing is measured."""
    counted = [hit for hit in hits if hit.is_counted]
    return {
        "counted": len(counted),
        "unfinished": sum(len(hit.unfinished) for hit in counted),
        "collected": sum(len(hit.collected) for hit in counted),
    }


def write(played: Played, name: str) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(figures(played), indent=1) + "\n")
    return path


def table(played: Played) -> str:
    found = figures(played)
    lines = [
        f"seed {found['seed']}: {found['jobs']} jobs {found['jobsByPlacement']} in {found['seconds']} s, "
        f"{found['phases']}; {found['rollouts']} rollouts, {found['modelCalls']} model calls, "
        f"{found['apiWritesPerJob']} API writes per job",
        f"{'fault':24} {'times':>5} {'counted':>7} {'unfinished':>10} {'collected':>9} {'p50 s':>7} {'p99 s':>7}",
    ]
    for kind, row in found["faults"].items():
        times, counted, unfinished, collected = (row[key] for key in ("faults", "counted", "unfinished", "collected"))
        p50, p99 = (_shown(row[key]) for key in ("recoverySecondsP50", "recoverySecondsP99"))
        lines.append(f"{kind:24} {times:>5} {counted:>7} {unfinished:>10} {collected:>9} {p50:>7} {p99:>7}")
    return "\n".join([*lines, *found["problems"]])


def _percentile(ordered: list[float], share: float) -> float | None:
    """The smallest value that so many of them do not exceed."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 2) if ordered else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
