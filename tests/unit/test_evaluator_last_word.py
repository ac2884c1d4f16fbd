"""The outcome beside the results, and the pod that reads it when the evaluator's is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nhx_gym_operator.api.outcome import decode_outcome
from nhx_gym_operator.api.wire.plans import OUTCOME_PLAN_ENV, OutcomePlan
from nhx_gym_operator.api.wire.reports import Aggregate, Outcome
from nhx_gym_operator.evaluator import __main__ as program
from nhx_gym_operator.evaluator import last_word
from nhx_gym_operator.evaluator.journal import Journal, JournalHeader
from nhx_gym_operator.evaluator.last_word import KeptOutcomeError
from nhx_gym_operator.evaluator.plan import Paths
from support.controller_values import TOLD_TO_END, outcome
from unit.evaluator_fakes import make_plan, paths_in

PLAN = make_plan(Path("rows.jsonl"), attempt=2)
DONE = outcome(aggregates=[Aggregate(name="gym_reward.reward", value=0.5, kind="range", unit="reward", count=10)])
EARLY = outcome("Running", done=3)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return paths_in(tmp_path)


def kept(paths: Paths, uid: str = PLAN.uid, attempt: int = PLAN.attempt) -> Outcome | None:
    return last_word.kept(paths.outcome, uid, attempt)


def test_what_was_kept_is_what_was_said_in_full(paths: Paths) -> None:
    assert kept(paths) is None
    last_word.keep(EARLY, PLAN, paths.outcome)
    last_word.keep(DONE, PLAN, paths.outcome)
    assert kept(paths) == DONE
    assert [file.name for file in paths.results.iterdir()] == ["outcome.json"]


def test_another_jobs_outcome_and_another_attempts_are_none_of_this_one(paths: Paths) -> None:
    last_word.keep(DONE, PLAN, paths.outcome)
    assert kept(paths, uid="another") is None and kept(paths, attempt=3) is None


def test_a_file_that_is_no_outcome_is_no_ones(paths: Paths) -> None:
    paths.outcome.write_text("{}")
    with pytest.raises(KeptOutcomeError, match=r"outcome\.json cannot be read"):
        kept(paths)


def test_a_final_outcome_is_on_disk_before_it_has_its_name(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), paths.outcome.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    last_word.keep(DONE, PLAN, paths.outcome)
    assert synced == [(str(paths.outcome.with_suffix(".tmp")), False), (str(paths.results), True)]


def test_no_room_for_the_outcome_costs_no_result(paths: Paths) -> None:
    paths.outcome.with_suffix(".tmp").mkdir()
    last_word.keep(DONE, PLAN, paths.outcome)
    assert kept(paths) is None


def read(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Exit code and termination message of the container `read-outcome`."""
    plan = OutcomePlan(uid=PLAN.uid, attempt=PLAN.attempt)
    monkeypatch.setenv(OUTCOME_PLAN_ENV, plan.model_dump_json())
    code = program._outcome(paths)
    return code, paths.termination_log.read_text()


def test_the_reader_says_a_final_outcome_as_the_evaluator_would_have(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_word.keep(DONE, PLAN, paths.outcome)
    code, message = read(paths, monkeypatch)
    assert code == 0 and decode_outcome(message) == DONE


@pytest.mark.parametrize("last", [None, EARLY, TOLD_TO_END], ids=["none", "an early word", "told to end"])
def test_the_reader_says_that_there_is_a_journal_and_no_final_outcome(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, last: Outcome | None
) -> None:
    if last:
        last_word.keep(last, PLAN, paths.outcome)
    Journal.open(paths.journal, JournalHeader(PLAN.uid, "d", 2))
    assert read(paths, monkeypatch) == (3, "its results hold what it recorded, and no outcome")


@pytest.mark.parametrize("owner", [None, "another"])
def test_the_reader_says_that_there_is_nothing_of_the_job(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, owner: str | None
) -> None:
    if owner:
        Journal.open(paths.journal, JournalHeader(owner, "d", 2))
    assert read(paths, monkeypatch) == (4, "its results hold nothing of this job")


def test_the_reader_says_what_it_cannot_read(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    paths.outcome.mkdir()
    code, message = read(paths, monkeypatch)
    assert code == 1 and "outcome.json cannot be read" in message
