"""Jobs on real pods while everything around them and in them is killed: all of them end, each with the right answer.

`CHAOS_SEED` chooses the plan: the same seed is the same jobs and the same faults. `CHAOS_JOBS` makes the long plan
smaller, with one job of NeMo Gym in each placement at least. In `CHAOS_MINUTES` its jobs are to end; looking at what is
left and deleting it comes on top. The report is in `build/`.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from chaos import node, report, world
from chaos.model import Model
from chaos.plan import LONG, SHORT, Fault, Job, Kind, Plan, Where, make, scaled
from chaos.played import Played, broken
from chaos.run import Player
from chaos.world import COLOCATED, SANDBOXED

SEED = int(os.environ.get("CHAOS_SEED", "6"))
SHORT_SECONDS = 60 * int(os.environ.get("CHAOS_MINUTES", "20"))
"""In which its jobs end on a machine that is busy with anything; on an idle one it takes some two minutes."""
LONG_SECONDS = 60 * int(os.environ.get("CHAOS_MINUTES", "120"))
"""Until the last of 200 jobs has ended; docs/reliability.md says what they take."""


def played(plan: Plan, model: Model, name: str, seconds: float) -> Played:
    result = Player(plan, model).play(seconds)
    report.write(result, name)
    print(f"\n{report.table(result)}")
    return result


def kept(result: Played) -> None:
    """Every promise at once: a run is too dear for a test of each."""
    assert not (words := broken(result)), "\n".join(words)


def test_a_dozen_jobs_under_eight_faults_end_with_the_right_answers(light: None, model: Model) -> None:
    kept(played(make(SEED, SHORT), model, "chaos-short", SHORT_SECONDS))


def test_an_evaluator_that_is_killed_is_started_again_in_its_pod_and_goes_on_with_its_hosts(
    light: None, model: Model
) -> None:
    """All else that a run of chaos promises of such a job holds too."""
    jobs = [Job(f"killed-{n}", Where.LIGHT, rows=8, repeats=2, concurrency=2, hosts=n) for n in (1, 2)]
    faults = [Fault(Kind.EVALUATOR, job.name, after=5) for job in jobs]
    plan = Plan(SEED, replace(SHORT, light=len(jobs)), jobs, faults)
    kept(played(plan, model, "chaos-restarts", SHORT_SECONDS))


@pytest.mark.chaos
def test_two_hundred_jobs_eight_of_them_with_gym_itself_end_with_the_right_answers(light: None, model: Model) -> None:
    size = scaled(LONG, int(os.environ["CHAOS_JOBS"])) if "CHAOS_JOBS" in os.environ else LONG
    # Which jobs and faults there are is the same on a smaller machine.
    size = replace(size, at_once=min(size.at_once, node.room()))
    with world.installed(SANDBOXED, COLOCATED):
        kept(played(make(SEED, size), model, "chaos", LONG_SECONDS))
