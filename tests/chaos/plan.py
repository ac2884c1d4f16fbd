"""What a run of chaos does, from its seed alone: which jobs there are, and what befalls which of them when."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Where(StrEnum):
    LIGHT = "light"
    """A sandboxed job whose host is the light one."""
    SANDBOXED = "sandboxed"
    COLOCATED = "colocated"
    """Both with NeMo Gym itself."""


class Kind(StrEnum):
    OPERATOR = "operator killed"
    API_SERVER = "API server killed"
    EVALUATOR = "evaluator killed"
    EVALUATOR_POD = "evaluator pod deleted"
    EVALUATOR_SHIM = "evaluator's shim killed"
    HOST = "host killed"
    HOST_POD = "host pod deleted"
    HOST_SHIM = "host's shim killed"
    MODEL = "model failed"


LOSSES = {
    Kind.EVALUATOR: "evaluator",
    Kind.EVALUATOR_POD: "evaluator",
    Kind.EVALUATOR_SHIM: "evaluator",
    Kind.HOST: "host",
    Kind.HOST_POD: "host",
    Kind.HOST_SHIM: "host",
}
"""Faults that take a part of the job itself, and which."""
MODEL_FAULTS = ("status=500", "status=503", "status=429", "reset", "slow")
ROWS = 8
"""Rows that there are; a job has the first so many of them."""


@dataclass(frozen=True)
class Job:
    name: str
    where: Where
    rows: int
    repeats: int
    concurrency: int
    hosts: int = 1

    @property
    def rollouts(self) -> set[tuple[int, int]]:
        """By task and repeat."""
        return {(task, repeat) for task in range(self.rows) for repeat in range(self.repeats)}

    @property
    def reward(self) -> float:
        """The known answer: the model is wrong on every fourth row."""
        return 1 - len([row for row in range(self.rows) if is_wrong(row)]) / self.rows


@dataclass(frozen=True)
class Fault:
    """One thing that happens, once the model has given `after` answers to the job. Until it has happened, the job gets
    no further one: so a fault is always in the middle of a run."""

    kind: Kind
    job: str
    after: int
    how: str = ""
    """Of a model's fault."""


@dataclass(frozen=True)
class Size:
    light: int
    real: int
    """Of each placement."""
    at_once: int
    real_at_once: int
    faults: Mapping[Kind, int]
    clears: bool = False
    """Whether each job is looked at and deleted as soon as it has ended: what hundreds of them leave there slows down
    what the others wait for."""


SHORT = Size(
    light=12,
    real=0,
    at_once=8,
    real_at_once=0,
    faults={
        Kind.OPERATOR: 1,
        Kind.API_SERVER: 1,
        Kind.EVALUATOR: 1,
        Kind.EVALUATOR_POD: 1,
        Kind.HOST: 1,
        Kind.HOST_SHIM: 1,
        Kind.MODEL: 2,
    },
)
LONG = Size(
    light=192,
    real=4,
    at_once=20,
    real_at_once=2,
    faults={
        Kind.OPERATOR: 10,
        Kind.API_SERVER: 5,
        Kind.EVALUATOR: 14,
        Kind.EVALUATOR_POD: 6,
        Kind.EVALUATOR_SHIM: 6,
        Kind.HOST: 14,
        Kind.HOST_POD: 6,
        Kind.HOST_SHIM: 6,
        Kind.MODEL: 20,
    },
    clears=True,
)


def scaled(size: Size, jobs: int) -> Size:
    """About as many jobs as asked for, with every kind of job and fault still among them."""
    share = jobs / (size.light + 2 * size.real)
    faults = {kind: max(1, round(share * count)) for kind, count in size.faults.items()}
    real = max(1, round(share * size.real))
    return replace(size, light=max(sum(faults.values()), jobs - 2 * real), real=real, faults=faults)


@dataclass(frozen=True)
class Plan:
    seed: int
    size: Size
    jobs: list[Job] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def is_wrong(row: int) -> bool:
    return row % 4 == 3


def make(seed: int, size: Size) -> Plan:
    """The same plan for the same seed and size."""
    dice = random.Random(seed)
    wheres = [Where.LIGHT] * size.light + [Where.SANDBOXED, Where.COLOCATED] * size.real
    # Those that take longest begin early, and not all at once.
    wheres = sorted(wheres, key=lambda where: dice.random() * (0.7 if where is not Where.LIGHT else 1))
    jobs = [_job(dice, number, where) for number, where in enumerate(wheres)]
    kinds = [kind for kind, count in size.faults.items() for _ in range(count)]
    dice.shuffle(kinds)
    free, faults = list(jobs), []
    # Of those with NeMo Gym, every second one of a placement loses a part: the dice alone might spare them all.
    gyms = [job for where in (Where.SANDBOXED, Where.COLOCATED) for job in [j for j in jobs if j.where is where][::2]]
    for kind in kinds:
        losing = [job for job in gyms if kind in LOSSES and _may_befall(kind, job)]
        job = dice.choice(losing or [job for job in free if job not in gyms and _may_befall(kind, job)])
        free.remove(job)
        gyms = [other for other in gyms if other is not job]
        how = dice.choice(MODEL_FAULTS) if kind is Kind.MODEL else ""
        faults.append(Fault(kind, job.name, dice.randint(1, len(job.rollouts) - 1), how))
    return Plan(seed, size, jobs, faults)


def _job(dice: random.Random, number: int, where: Where) -> Job:
    rows, repeats, concurrency = dice.randint(4, ROWS), dice.randint(1, 2), dice.randint(1, 4)
    # Hosts share the job's concurrency: the API refuses more of them.
    hosts = 2 if where is Where.LIGHT and dice.random() < 0.25 and concurrency > 1 else 1
    return Job(f"job-{number:03}", where, rows, repeats, concurrency, hosts)


def _may_befall(kind: Kind, job: Job) -> bool:
    """A colocated job has no host."""
    return job.where is not Where.COLOCATED or LOSSES.get(kind) != "host"
