"""What a run of chaos showed, and what can be told from that alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from chaos.plan import LOSSES, Fault, Job, Kind, Plan, Where
from support.cluster import Object
from support.job_watch import condition

OPERATOR_SECONDS = 20
BLIND_SECONDS = 30
"""So near to it the loss of an operator or of the API server can hide what a status said for a while, and that of the
API server can hold up who leads."""
KILLED = "exit code 137"


@dataclass
class Hit:
    """A fault that happened, and what it cost."""

    fault: Fault
    job: Job
    at: float
    """When it was inflicted, by the monotonic clock."""
    over: float = 0.0
    """When what it took was gone."""
    recorded: set[tuple[int, int]] = field(default_factory=set)
    """Rollouts of the job that were in its journal then."""
    unfinished: set[tuple[int, int]] = field(default_factory=set)
    collected: set[tuple[int, int]] = field(default_factory=set)
    """Rollouts that the model was asked for from then on, where that is counted."""
    recovered: float | None = None
    """When the job went on, or what was killed worked again."""
    beside: set[str] = field(default_factory=set)
    """UIDs of the job's pods when its evaluator was killed."""
    lost: int = 0
    """Attempts that the job had lost by then."""

    @property
    def seconds(self) -> float | None:
        return None if self.recovered is None else self.recovered - self.at

    @property
    def is_counted(self) -> bool:
        """Whether the model's calls tell what was collected again: the host says whose each is, and no other host goes
        on with what it has in hand."""
        return self.fault.kind in LOSSES and self.job.where is Where.LIGHT and self.job.hosts == 1

    @property
    def is_timed(self) -> bool:
        """Whether the next call tells that what was lost is back: a second host goes on calling."""
        return LOSSES.get(self.fault.kind) != "host" or self.job.hosts == 1


@dataclass
class Played:
    """All that a run showed. `problems` is empty if every promise was kept."""

    plan: Plan
    seconds: float = 0.0
    hits: list[Hit] = field(default_factory=list)
    phases: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    writes: dict[str, int] = field(default_factory=dict)
    rollouts: int = 0
    calls: int = 0


def broken(played: Played) -> list[str]:
    """Promises that were not kept, the run's own problems first."""
    words = list(played.problems)
    words += [f"{job.name} did not end" for job in played.plan.jobs if job.name not in played.phases]
    happened = {hit.fault for hit in played.hits}
    words += [f"it did not happen: {fault}" for fault in played.plan.faults if fault not in happened]
    for hit in played.hits:
        if hit.fault.kind is Kind.OPERATOR:
            late = hit.seconds is not None and hit.seconds > OPERATOR_SECONDS
            if hit.seconds is None or (late and not _is_near(hit, played.hits, Kind.API_SERVER)):
                words.append(f"no operator acted within {OPERATOR_SECONDS} s: {hit.fault}, {hit.seconds} s")
        elif hit.recovered is None and hit.is_timed and (hit.unfinished or hit.fault.kind is Kind.MODEL):
            words.append(f"nothing went on after it: {hit.fault}")
    return words


def acts_since(lease: Mapping[str, Any], holder: str, gone: float) -> float | None:
    """When an operator acted first after `holder` was gone, by a Lease's spec; None if it shows none yet. Both by the
    clock of this machine, which is also the node's. A container that starts again bears its pod's name, and goes on
    with the Lease; another operator takes it."""
    moment = lease.get("renewTime" if lease.get("holderIdentity") == holder else "acquireTime")
    if not moment or not lease.get("holderIdentity"):
        return None
    seconds = datetime.fromisoformat(moment).timestamp()
    return seconds if seconds > gone else None


def told_of_restart(states: Iterable[Object]) -> bool:
    """Whether a job's states say that its evaluator was killed: while it is away, or once it is back."""
    return any(KILLED in condition(state, "Running").get("message", "") for state in states)


def may_be_unseen(hit: Hit, hits: Iterable[Hit]) -> bool:
    """Whether nobody may have looked, or been told, what the status of its job said right after it."""
    return _is_near(hit, hits, Kind.OPERATOR, Kind.API_SERVER)


def _is_near(hit: Hit, hits: Iterable[Hit], *kinds: Kind) -> bool:
    return any(other.fault.kind in kinds and abs(other.at - hit.at) <= BLIND_SECONDS for other in hits)
