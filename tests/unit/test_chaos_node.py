"""How chaos reads what it judges by: journals as the evaluator writes them, and percentiles."""

from __future__ import annotations

from pathlib import Path

from chaos import node
from chaos.report import _percentile
from nhx_gym_operator.api.wire.reports import FailureClass
from nhx_gym_operator.evaluator.journal import Journal, JournalHeader
from nhx_gym_operator.evaluator.rollouts import Failure, RolloutKey


async def test_a_journal_is_read_as_it_was_written_without_the_line_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, JournalHeader("uid", "digest", 1))
    await journal.add_result(RolloutKey(0, 0), "a", {"reward": 1.0}, 1.0)
    await journal.add_failure(RolloutKey(1, 0), "b", Failure(FailureClass.MODEL, "no answer"))
    await journal.add_result(RolloutKey(2, 0), "c", {"reward": 0.0}, 0.0)
    await journal.close()
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - 5)
    found = node.read_journal(path)
    assert found == node.Records(results=[(0, 0)], failures=[(1, 0)])


def test_a_job_that_has_recorded_nothing_has_no_journal_yet(tmp_path: Path) -> None:
    assert node.read_journal(tmp_path / "journal.jsonl") == node.Records([], [])


def test_percentiles_are_values_that_were_measured() -> None:
    assert [_percentile([1.0, 2.0, 3.0, 10.0], share) for share in (0.5, 0.99)] == [2.0, 10.0]
    assert _percentile([], 0.5) is None
