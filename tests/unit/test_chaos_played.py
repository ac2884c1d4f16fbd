"""How a run of chaos judges what it saw: which promise was broken, and that one which was not is not said to be."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from chaos import run
from chaos.plan import SHORT, Fault, Job, Kind, Plan, Where
from chaos.played import Hit, Played, acts_since, broken, may_be_unseen, told_of_restart
from support.cluster import CommandError

JOB = Job("a", Where.LIGHT, rows=4, repeats=1, concurrency=2)
GONE = 1_767_225_600.0
"""2026-01-01T00:00:00Z"""


def hit(kind: Kind, at: float = 100.0, job: Job = JOB, **what: Any) -> Hit:
    return Hit(Fault(kind, job.name, after=2), job, at, **what)


def after(*hits: Hit, phases: tuple[str, ...] = ("a",), problems: tuple[str, ...] = ()) -> Played:
    plan = Plan(6, SHORT, [JOB], [each.fault for each in hits])
    return Played(plan, hits=list(hits), phases=dict.fromkeys(phases, "Succeeded"), problems=list(problems))


def test_a_run_in_which_all_went_on_broke_nothing() -> None:
    kinds = [Kind.OPERATOR, Kind.API_SERVER, Kind.EVALUATOR, Kind.MODEL]
    assert broken(after(*(hit(kind, recovered=119.0, unfinished={(0, 0)}) for kind in kinds))) == []
    # What was lost when all was recorded need not be asked for again.
    assert broken(after(hit(Kind.HOST))) == []


@pytest.mark.parametrize(
    ("played", "words"),
    [
        (after(problems=("a pod is left",)), "a pod is left"),
        (after(phases=()), "a did not end"),
        (dataclasses.replace(after(hit(Kind.HOST)), hits=[]), "it did not happen: .*host killed"),
        (after(hit(Kind.HOST, unfinished={(0, 0)})), "nothing went on after it: .*host killed"),
        (after(hit(Kind.MODEL)), "nothing went on after it: .*model failed"),
        (after(hit(Kind.OPERATOR, recovered=120.5)), "no operator acted within 20 s"),
        (after(hit(Kind.OPERATOR)), "no operator acted within 20 s"),
    ],
)
def test_a_promise_that_was_broken_is_named(played: Played, words: str) -> None:
    (said,) = broken(played)
    assert re.search(words, said)


def lease(holder: str, acquired: int, renewed: int) -> dict[str, Any]:
    """Seconds after the kill."""
    shown = {
        key: f"2026-01-01T00:00:{at:02}.500000Z" if at >= 0 else "2025-12-31T23:59:00.000000Z"
        for key, at in {"acquireTime": acquired, "renewTime": renewed}.items()
    }
    return {"holderIdentity": holder, **shown}


def test_an_operator_acts_again_when_another_one_takes_the_lease_not_when_it_is_looked_at_later() -> None:
    assert acts_since(lease("other", acquired=16, renewed=22), "killed", GONE) == GONE + 16.5


def test_an_operator_that_starts_again_in_its_pod_goes_on_with_its_lease() -> None:
    assert acts_since(lease("killed", acquired=-1, renewed=3), "killed", GONE) == GONE + 3.5


@pytest.mark.parametrize("spec", [{}, lease("killed", -1, -1), lease("", 1, 1), lease("other", -1, 2)])
def test_a_lease_that_nobody_took_since_shows_no_operator(spec: dict[str, Any]) -> None:
    assert acts_since(spec, "killed", GONE) is None


def state(status: str, reason: str, message: str) -> dict[str, Any]:
    condition = {"type": "Running", "status": status, "reason": reason, "message": message}
    return {"status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (
            "EvaluatorRestarting",
            "the evaluator ended without an outcome: Error, exit code 137; it is started again in its pod",
        ),
        (
            "Collecting",
            "rollouts are being collected; the evaluator was started again in its pod (time 1), after "
            "Error, exit code 137",
        ),
    ],
)
def test_a_restart_is_told_while_the_evaluator_is_away_or_once_it_is_back(reason: str, message: str) -> None:
    quiet = state("True", "Collecting", "rollouts are being collected")
    assert not told_of_restart([{}, quiet])
    assert told_of_restart([quiet, state("False", reason, message), quiet])


def test_a_status_is_not_missed_where_nobody_was_there_to_tell_or_to_look() -> None:
    killed = hit(Kind.EVALUATOR)
    assert may_be_unseen(killed, [killed, hit(Kind.API_SERVER, 129.0)])
    assert may_be_unseen(killed, [killed, hit(Kind.OPERATOR, 71.0)])
    assert not may_be_unseen(killed, [killed, hit(Kind.API_SERVER, 131.0), hit(Kind.HOST), hit(Kind.MODEL)])


def test_what_a_command_breaks_off_is_a_problem_of_the_report_and_the_rest_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nothing:
        def __getattr__(self, _name: str) -> Any:
            return lambda *_: {}

    monkeypatch.setattr(run, "JobWatch", Nothing)
    monkeypatch.setattr(run, "Writes", Nothing)
    player = run.Player(Plan(6, SHORT, [JOB]), run.Model())
    done: list[str] = []

    def refused(*_: Any) -> None:
        raise CommandError(["kubectl", "apply"], "no answer")

    monkeypatch.setattr(player, "_set_up", refused)
    monkeypatch.setattr(player, "_check", refused)
    monkeypatch.setattr(player, "_take_down", lambda: done.append("taken down"))
    problems = player.play(deadline_seconds=1).problems
    assert problems == [
        "it broke off: CommandError: kubectl apply: no answer",
        "a could not be looked at: CommandError: kubectl apply: no answer",
    ]
    assert done == ["taken down"]
