"""How a run of chaos judges what it saw: which promise was broken, and that one which was not is not said to be."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from unittest.mock import MagicMock

import pytest

from chaos import report, run
from chaos.model import Call, Model
from chaos.plan import LONG, SHORT, Fault, Job, Kind, Plan, Where, scaled
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


def test_an_operator_may_act_later_right_after_the_api_servers_loss_and_has_to_act() -> None:
    late, gone = hit(Kind.OPERATOR, recovered=124.5), hit(Kind.API_SERVER, 88.0, recovered=99.0)
    assert broken(after(late, gone)) == []
    assert len(broken(after(late, hit(Kind.API_SERVER, 69.0, recovered=80.0)))) == 1
    assert len(broken(after(hit(Kind.OPERATOR), gone))) == 1


def test_what_cannot_be_counted_is_in_no_figure() -> None:
    two, real = dataclasses.replace(JOB, hosts=2), dataclasses.replace(JOB, where=Where.SANDBOXED)
    of_one = hit(Kind.HOST, recovered=110.0, unfinished={(0, 0), (1, 0)}, collected={(0, 0), (1, 0)})
    of_two = hit(Kind.HOST, recovered=100.1, unfinished={(2, 0)}, job=two)
    of_gym = hit(Kind.HOST, recovered=130.0, unfinished={(3, 0)}, job=real)
    found = report.figures(after(of_one, of_two, of_gym, hit(Kind.EVALUATOR, recovered=104.0, job=two)))
    assert found["faults"]["host killed"] == {
        "faults": 3,
        "counted": 1,
        "unfinished": 2,
        "collected": 2,
        "timed": 2,
        "recoverySecondsP50": 10.0,
        "recoverySecondsP99": 30.0,
    }
    assert found["faults"]["evaluator killed"]["recoverySecondsP50"] == 4.0, "all calls go through the evaluator"
    assert (found["countedLosses"], found["unfinishedAtLosses"], found["collectedAgain"]) == (1, 2, 2)
    assert [each["collected"] for each in found["hits"]] == [2, None, None, None]


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> run.Player:
    """It has neither a watch nor an API server."""
    monkeypatch.setattr(run, "JobWatch", MagicMock())
    monkeypatch.setattr(run, "Writes", MagicMock())
    return run.Player(Plan(6, dataclasses.replace(SHORT, clears=True), [JOB]), Model())


def test_what_a_command_breaks_off_is_a_problem_of_the_report_and_the_rest_is_done(
    player: run.Player, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_model_that_failed_less_often_than_planned_is_a_problem(player: run.Player) -> None:
    failing = hit(Kind.MODEL)
    player._model.failed += [("a", (0, 0), 1.0), ("other", (1, 0), 1.0)]
    player._check_failed(JOB, failing)
    assert player.played.problems == ["a (light): model failed: calls of 1 rollouts failed, not of 2"]
    player._model.failed.append(("a", (1, 0), 2.0))
    player._check_failed(JOB, failing)
    assert len(player.played.problems) == 1


def test_a_rollout_that_was_not_collected_again_is_a_problem_where_that_is_counted(player: run.Player) -> None:
    lost = {"over": 1.0, "recorded": {(0, 0)}, "unfinished": {(1, 0), (2, 0), (3, 0)}}
    player._model.record += [Call("a", (task, 0), at=2.0) for task in (1, 2)]
    player._check_collected(JOB, hit(Kind.HOST, **lost))
    (problem,) = player.played.problems
    assert problem.endswith("[(1, 0), (2, 0), (3, 0)] were unfinished, and [(1, 0), (2, 0)] were collected")
    two = dataclasses.replace(JOB, hosts=2)
    player._check_collected(two, hit(Kind.HOST, job=two, **lost))
    assert len(player.played.problems) == 1
    player._model.record.append(Call("a", (0, 0), at=2.0))
    player._check_collected(two, hit(Kind.HOST, job=two, **lost))
    assert player.played.problems[1].endswith("recorded already, and asked again: [(0, 0)]")


def test_a_job_of_the_long_plan_is_looked_at_once_before_it_is_deleted(
    player: run.Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LONG.clears and scaled(LONG, 12).clears
    done: list[str] = []
    monkeypatch.setattr(player, "_set_up", lambda: None)
    monkeypatch.setattr(player, "_submit", lambda _jobs: None)
    monkeypatch.setattr(player, "_last", lambda _job: {"status": {"phase": "Succeeded"}})
    monkeypatch.setattr(player, "_check", lambda job: done.append(f"looked at {job.name}"))
    monkeypatch.setattr(player, "_take_down", lambda: done.append("took all down"))
    monkeypatch.setattr(run.cluster, "delete", lambda _kind, name, *_, **__: done.append(f"deleted {name}"))
    assert player.play(deadline_seconds=60).problems == []
    assert done == ["looked at a", "deleted a", "took all down"]
