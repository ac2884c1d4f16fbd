"""Whether the job is complete, and how it says so in the few bytes of a termination message."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nhx_evals_sdk.agent_eval.results import AgentEvalSummary
from nhx_evals_sdk.values.results import AggregateScore

from ..api.conditions import RunReason
from ..api.outcome import MAX_AGGREGATE_NAME, MAX_AGGREGATES, REWARD_PREFIX, STATISTICS
from ..api.wire.endpoints import ModelUsage, Progress, Stage
from ..api.wire.mounts import attempt_dir
from ..api.wire.plans import EvaluatorPlan
from ..api.wire.reports import Aggregate, FailureClass, Outcome
from .rollouts import Failure

GYM = "runner.gym."
MAX_OUTCOME_MESSAGE = 1500
"""Characters of what a job ends with: a termination message has 4,096 bytes for that and the aggregates."""


@dataclass
class Verdict:
    """What decides the job: rollouts with a reward out of those asked for, and why others have none."""

    state: Literal["Complete", "Failed"]
    reason: str
    message: str
    coverage: float
    failure_class: FailureClass | None = None
    degraded: list[str] = field(default_factory=list)


def verdict(plan: EvaluatorPlan, *, done: int, total: int, failures: Iterable[Failure]) -> Verdict:
    """Complete if `minCoverage` of the rollouts have a reward; a failed rollout is never a zero."""
    failures = list(failures)
    coverage = done / total
    counts = f"{done} of {total} rollouts have a reward"
    if done == total:
        return Verdict("Complete", RunReason.ALL_ROLLOUTS_RECORDED, counts, coverage)
    common = Counter(failure.failure_class for failure in failures).most_common(1)
    failure_class = common[0][0] if common else None
    missing = f"{counts}; missing: {describe_failures(failures)}"
    # A share like 0.7 of 10 must not fail for the way floats are stored.
    if done and coverage >= plan.min_coverage - 1e-9:
        return Verdict("Complete", RunReason.MIN_COVERAGE_REACHED, counts, coverage, failure_class, [missing])
    needed = f"spec.minCoverage asks for {plan.min_coverage:g} of them"
    return Verdict("Failed", RunReason.COVERAGE_TOO_LOW, f"{missing} ({needed})", coverage, failure_class)


def describe_failures(failures: Iterable[Failure]) -> str:
    """`2 model (“the server's words”), 1 killed (“…”)`: each class with its most frequent message."""
    by_class: dict[FailureClass, Counter[str]] = {}
    for failure in failures:
        by_class.setdefault(failure.failure_class, Counter())[failure.message] += 1
    ordered = sorted(by_class.items(), key=lambda item: -item[1].total())
    parts = (f"{words.total()} {kind.value} (“{words.most_common(1)[0][0][:400]}”)" for kind, words in ordered)
    return ", ".join(parts)


def aggregates_of(summary: AgentEvalSummary) -> tuple[list[Aggregate], int]:
    """The aggregates that a status shows, the reward's first, and how many more the bundle has."""
    scores = summary.scores.scores
    fitting: dict[str, AggregateScore] = {}
    for score in sorted(scores, key=lambda score: not score.name.startswith(REWARD_PREFIX)):
        if len(score.name) <= MAX_AGGREGATE_NAME:
            fitting.setdefault(score.name, score)
    shown = [_aggregate(score) for score in list(fitting.values())[:MAX_AGGREGATES]]
    return shown, len(scores) - len(shown)


def base_outcome(
    plan: EvaluatorPlan, progress: Progress, usage: Mapping[str, ModelUsage], versions: Mapping[str, str]
) -> Outcome:
    """The outcome of a job that still runs."""
    return Outcome(
        state="Running",
        progress=progress,
        usage=dict(usage),
        versions=dict(versions),
        results_path=attempt_dir(plan.attempt),
    )


def unplanned_outcome(message: str) -> Outcome:
    """The outcome of an evaluator that does not know what to evaluate."""
    progress = Progress(stage=Stage.STARTING, attempt=0)
    message = message[:MAX_OUTCOME_MESSAGE]
    return Outcome(state="Failed", reason=RunReason.EVALUATION_FAILED, message=message, progress=progress)


def _aggregate(score: AggregateScore) -> Aggregate:
    statistics: dict[str, Any] = {}
    if score.score_type == "range":
        statistics = {name: _finite(getattr(score, name)) for name in STATISTICS}
    return Aggregate(
        name=score.name,
        value=_finite(score.headline_value),
        kind=score.score_type,
        unit="gym" if score.name.startswith(GYM) else "reward",
        count=score.count,
        **statistics,
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
