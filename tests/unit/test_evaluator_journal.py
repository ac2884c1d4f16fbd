from __future__ import annotations

import asyncio
import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import FileIO
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nhx_gym_operator.api.wire.reports import FailureClass
from nhx_gym_operator.evaluator.journal import (
    ForeignJournal,
    Journal,
    JournalError,
    JournalHeader,
    JournalUnwritable,
)
from nhx_gym_operator.evaluator.metering import Counted
from nhx_gym_operator.evaluator.rollouts import Failure, RolloutKey

HEADER = JournalHeader(uid="u", dataset_digest="sha256:d", num_repeats=2)
KEY = RolloutKey(3, 1)
KILLED = Failure(FailureClass.KILLED, "the host went away")


async def written(path: Path, *results: tuple[RolloutKey, dict[str, Any]]) -> None:
    journal = Journal.open(path, HEADER)
    for key, result in results:
        await journal.add_result(key, "task", result, 0.0)
    await journal.close()


async def test_what_was_recorded_is_there_when_the_journal_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, HEADER)
    assert await journal.add_result(KEY, "task", {"reward": 1.0, "text": "é\u2028"}, 1.0)
    assert await journal.add_failure(RolloutKey(0, 0), "task", KILLED)
    await journal.close()
    again = Journal.open(path, HEADER)
    assert again.results == {KEY: {"reward": 1.0, "text": "é\u2028"}}
    assert again.failures == {RolloutKey(0, 0): KILLED}
    await again.close()


async def test_a_result_delivered_twice_is_recorded_once(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.jsonl", HEADER)
    assert await journal.add_result(KEY, "task", {"reward": 1.0}, 1.0)
    assert not await journal.add_result(KEY, "task", {"reward": 0.0}, 0.0)
    assert not await journal.add_failure(KEY, "task", KILLED)
    await journal.close()
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 2
    assert journal.results[KEY] == {"reward": 1.0} and not journal.failures


async def test_a_failure_is_replaced_by_a_later_result(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, HEADER)
    await journal.add_failure(KEY, "task", KILLED)
    await journal.add_result(KEY, "task", {"reward": 0.5}, 0.5)
    await journal.close()
    again = Journal.open(path, HEADER)
    await again.close()
    assert again.results.keys() == {KEY} and not again.failures


async def test_how_often_a_rollout_failed_is_known_to_whoever_opens_it_again(tmp_path: Path) -> None:
    other = RolloutKey(1, 1)
    journal = Journal.open(tmp_path / "journal.jsonl", HEADER)
    for key in (KEY, other, other, other):
        await journal.add_failure(key, "task", KILLED)
    await journal.add_result(KEY, "task", {}, 1.0)
    await journal.close()
    again = Journal.open(tmp_path / "journal.jsonl", HEADER)
    assert again.failed_tries == journal.failed_tries == {other: 3}
    assert not await again.add_failure(KEY, "task", KILLED) and again.failed_tries == {other: 3}
    await again.close()


async def test_environments_of_earlier_attempts_are_known_where_they_were_others(tmp_path: Path) -> None:
    others = []
    for digest in ("sha256:a", "sha256:a", "sha256:b"):
        journal = Journal.open(tmp_path / "j", HEADER)
        others.append(await journal.add_environment(digest))
        await journal.close()
    assert others == [[], [], ["sha256:a"]]
    assert Journal.open(tmp_path / "j", HEADER).environments == ["sha256:a", "sha256:b"]


async def test_a_line_that_a_kill_cut_short_is_dropped_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    await written(path, (KEY, {"reward": 1.0}), (RolloutKey(4, 0), {"reward": 0.0}))
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        journal = Journal.open(path, HEADER)
        assert journal.results.keys() == {KEY}
        await journal.add_result(RolloutKey(4, 0), "task", {"reward": 0.0}, 0.0)
        await journal.close()
        assert path.read_bytes() == whole


async def test_damage_that_no_kill_explains_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    await written(path, (KEY, {"reward": 1.0}), (RolloutKey(4, 0), {"reward": 0.0}))
    path.write_bytes(path.read_bytes().replace(b"1.0", b"0.0", 1))
    with pytest.raises(JournalError, match=r"journal\.jsonl:2 is damaged .*; apply the job again under another name"):
        Journal.open(path, HEADER)


@pytest.mark.parametrize("field", ["uid", "dataset_digest", "num_repeats"])
async def test_a_journal_of_another_evaluation_is_refused(tmp_path: Path, field: str) -> None:
    path = tmp_path / "journal.jsonl"
    await written(path)
    other = JournalHeader(**{**vars(HEADER), field: 7 if field == "num_repeats" else "other"})
    with pytest.raises(JournalError, match=field):
        Journal.open(path, other)


async def test_a_journal_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    with monkeypatch.context() as older:
        older.setattr("nhx_gym_operator.evaluator.journal._VERSION", 1)
        await written(path)
    with pytest.raises(JournalError, match="another version"):
        Journal.open(path, HEADER)


async def test_what_was_counted_when_the_last_record_was_written_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, HEADER)
    assert journal.usage == {}
    for tokens in (120, 240):
        journal.measure = lambda tokens=tokens: {"policy": Counted(calls=tokens // 120, total_tokens=tokens)}
        await journal.add_failure(KEY, "task", KILLED)
    await journal.close()
    again = Journal.open(path, HEADER)
    await again.add_environment("sha256:e")  # before anything is counted again
    await again.close()
    assert Journal.open(path, HEADER).usage == {"policy": Counted(calls=2, total_tokens=240)}


async def test_what_is_counted_between_records_is_noted_when_it_changed_and_when_the_journal_is_closed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, HEADER)
    usage = Counted()
    journal.measure = lambda: {"policy": usage}
    await journal.note_usage()
    usage.calls = 1
    for _ in range(3):
        await journal.note_usage()
    assert len(path.read_bytes().splitlines()) == 2
    assert Journal.open(path, HEADER).usage == {"policy": Counted(calls=1)}
    usage.calls = 2
    await journal.close()
    again = Journal.open(path, HEADER)
    assert again.usage == {"policy": usage} and not again.results and not again.failures
    await again.close()
    assert len(path.read_bytes().splitlines()) == 3


async def test_a_journal_that_takes_no_last_note_is_closed_all_the_same(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.jsonl", HEADER)
    journal.measure = lambda: {"policy": Counted(calls=1)}
    with FileIO("/dev/full", "ab") as journal._file:
        await journal.close()
    assert journal._file is None


async def test_a_result_is_not_held_in_memory_and_can_be_read_while_others_are_written(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.jsonl", HEADER)
    for number in range(20):
        await journal.add_result(RolloutKey(number, 0), "task", {"text": "x" * number}, number / 2)
        assert journal.results[RolloutKey(number, 0)] == {"text": "x" * number}
    assert journal.results.reward(RolloutKey(7, 0)) == 3.5 and journal.results.reward(RolloutKey(7, 1)) is None
    (tmp_path / "journal.jsonl").write_bytes(b"")
    with pytest.raises(JournalError, match="changed under this job"):
        journal.results[RolloutKey(0, 0)]


async def test_a_record_is_on_the_disk_before_its_caller_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, HEADER)
    assert journal._file is not None
    own = journal._file.fileno()
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(path.read_bytes()) if fd == own else None)
    for number in range(3):
        await journal.add_result(RolloutKey(number, 0), "task", {"reward": 1.0}, 1.0)
        assert len(synced) == number + 1 and synced[-1] == path.read_bytes()
    await journal.close()


async def test_records_that_come_together_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = []
    monkeypatch.setattr("os.fsync", syncs.append)
    journal = Journal.open(tmp_path / "journal.jsonl", HEADER)
    await asyncio.gather(*(journal.add_result(RolloutKey(n, 0), "task", {"reward": 1.0}, 1.0) for n in range(200)))
    await journal.close()
    assert 0 < len(syncs) < 10
    assert len(Journal.open(tmp_path / "journal.jsonl", HEADER).results) == 200


async def test_from_the_first_record_on_that_cannot_be_written_none_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, HEADER)
    await journal.add_result(KEY, "task", {"reward": 1.0}, 1.0)
    with FileIO("/dev/full", "ab") as full:
        volume, journal._file = journal._file, full
        adding = (journal.add_result(RolloutKey(n, 0), "task", {"reward": 1.0}, 1.0) for n in range(5))
        ends = await asyncio.gather(*adding, return_exceptions=True)
        journal._file = volume
    assert all(isinstance(end, JournalUnwritable) and "No space left on device" in str(end) for end in ends)
    with pytest.raises(JournalUnwritable):
        await journal.add_failure(RolloutKey(7, 0), "task", KILLED)
    await journal.close()
    assert journal.results.keys() == Journal.open(path, HEADER).results.keys() == {KEY}


FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.text() | st.integers() | FLOATS))
@settings(max_examples=50, deadline=None)
def test_any_json_value_survives(tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    asyncio.run(written(path, (KEY, value)))
    for line in path.read_text().splitlines():
        json.loads(line)
    assert Journal.open(path, HEADER).results[KEY] == value


def opened_together(path: Path, monkeypatch: pytest.MonkeyPatch, *uids: str) -> list[Journal | JournalError]:
    """What each of these jobs gets that open the journal at the same moment: each has looked before any begins it."""
    exists, all_looked = Path.exists, Barrier(len(uids))

    def looked(file: Path) -> bool:
        found = exists(file)
        all_looked.wait(timeout=60)
        return found

    def opened(uid: str) -> Journal | JournalError:
        try:
            return Journal.open(path, replace(HEADER, uid=uid))
        except JournalError as error:
            return error

    with monkeypatch.context() as together, ThreadPoolExecutor(len(uids)) as jobs:
        together.setattr(Path, "exists", looked)
        return list(jobs.map(opened, uids))


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "a volume without hard links"])
async def test_of_jobs_that_begin_on_one_volume_at_the_same_moment_one_has_the_journal_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "no hard links here")))
    path = tmp_path / "journal.jsonl"
    found = opened_together(path, monkeypatch, "a", "b", "c")
    own = [journal for journal in found if isinstance(journal, Journal)]
    refused = [error for error in found if isinstance(error, ForeignJournal)]
    assert (len(own), len(refused)) == (1, 2)
    await own[0].add_result(KEY, "task", {"reward": 1.0}, 1.0)
    await own[0].close()
    assert Journal.open(path, own[0].header).results.keys() == {KEY}
    assert [file.name for file in tmp_path.iterdir()] == ["journal.jsonl"]


async def test_a_journal_that_a_power_cut_left_without_its_first_line_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nhx_gym_operator.evaluator.journal._BEGINNING_SECONDS", 0.2)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"crc32":"00')
    await written(path, (KEY, {"reward": 1.0}))
    assert Journal.open(path, HEADER).results.keys() == {KEY}
