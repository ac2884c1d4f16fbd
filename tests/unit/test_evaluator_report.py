"""report.html of a finished job: what stands in it, and that nothing in it can load or run anything."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from nhx_evals_sdk.agent_eval.runtimes.gym import discover_gym_tasks

from nhx_gym_operator.api.wire.endpoints import Progress, Stage
from nhx_gym_operator.api.wire.reports import FailureClass, Outcome
from nhx_gym_operator.evaluator import report
from nhx_gym_operator.evaluator.journal import Journal, JournalHeader
from nhx_gym_operator.evaluator.rollouts import Failure, Rollout, RolloutKey
from unit.evaluator_fakes import row, world, write_rows
from unit.test_evaluator_run import bundle, finish

HOSTILE = "</pre></td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--"


class Page(HTMLParser):
    """The page as a browser takes it apart: elements with their attributes, and the text of each table's rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self._heading = ""
        self._in_heading = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "h2":
            self._heading, self._in_heading = "", True
        elif tag == "tr":
            self.tables.setdefault(self._heading, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._heading][-1].append("")
        elif tag == "span":
            self.tables[self._heading][-1][-1] += " "

    def handle_endtag(self, tag: str) -> None:
        self._in_heading = self._in_heading and tag != "h2"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_heading:
            self._heading += data
        elif self.tables.get(self._heading) and self.tables[self._heading][-1]:
            self.tables[self._heading][-1][-1] += data

    def rows(self, heading: str) -> list[list[str]]:
        return [[cell.strip() for cell in row] for row in self.tables[heading][1:]]


def page(paths: Any) -> Page:
    return Page((bundle(paths) / "report.html").read_text())


async def finished(tmp_path: Path, verify: Any, **plan: Any) -> Page:
    async with world(tmp_path) as w:
        w.hosts[0].verify = verify
        await finish(w.evaluation(w.plan([row(number) for number in range(3)], **plan)), *w.hosts)
        return page(w.paths)


def wrong_on_two(example: dict[str, Any], text: str) -> float:
    if example["expected_answer"] == "2":
        raise KeyError("no such table")
    return 0.5


async def test_rewards_stand_per_task_and_repeat(tmp_path: Path) -> None:
    shown = await finished(tmp_path, wrong_on_two, min_coverage=0.5)
    assert shown.rows("Rewards") == [
        ["0", "question 0", "0.500", "0.5 0.5"],
        ["1", "question 1", "0.500", "0.5 0.5"],
        ["2", "question 2", "none", "environment environment"],
    ]


async def test_failures_stand_with_all_that_was_said(tmp_path: Path) -> None:
    shown = await finished(tmp_path, wrong_on_two, min_coverage=0.5)
    rows = shown.rows("Failures")
    assert [line[:3] for line in rows] == [["2", "0", "environment"], ["2", "1", "environment"]]
    assert all("no such table" in line[3] for line in rows)


async def test_the_sdks_own_tables_stay(tmp_path: Path) -> None:
    shown = await finished(tmp_path, wrong_on_two, min_coverage=0.5)
    assert any(line[0] == "gym_reward.reward" for line in shown.rows("Metric Rollups"))
    assert len(shown.rows("Scores")) == 6


async def test_the_page_can_load_and_run_nothing(tmp_path: Path) -> None:
    shown = await finished(tmp_path, lambda example, text: 1.0)
    policies = [attributes["content"] for tag, attributes in shown.elements if "http-equiv" in attributes]
    assert len(policies) == 1 and policies[0] and policies[0].startswith("default-src 'none'")
    assert not [tag for tag, _ in shown.elements if tag in ("script", "img", "link", "iframe", "object", "form")]
    links = [attributes["href"] for tag, attributes in shown.elements if tag == "a"]
    assert not [link for link in links if not link or ":" in link or link.startswith("/")]


def calls(start: float, end: float, tokens: Any = 7) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": 3}
    return {"started_at": start, "completed_at": end, "response": {"usage": usage}}


async def written(
    tmp_path: Path, results: dict[RolloutKey, Any], failures: dict[RolloutKey, Failure], **more: Any
) -> Page:
    (tmp_path / "journal").unlink(missing_ok=True)
    journal = Journal.open(tmp_path / "journal", JournalHeader("u", "d", 1))
    await asyncio.gather(
        *(journal.add_result(key, "id", result, result["reward"]) for key, result in results.items()),
        *(journal.add_failure(key, "id", failure) for key, failure in failures.items()),
    )
    await journal.close()
    row = {"responses_create_params": {"input": more.get("prompt", "hello")}}
    (task,) = discover_gym_tasks(write_rows(tmp_path / "rows.jsonl", [row]))
    task = task.model_copy(update={"id": more.get("task_id", "id")})
    rollouts = [Rollout(key, task, "agent") for key in sorted([*results, *failures])]
    progress = Progress(stage=Stage.DONE, attempt=1)
    said = {"state": more.get("state", "Complete"), "message": more.get("message", "")}
    outcome = Outcome(reason="R", progress=progress, **said)
    await asyncio.to_thread(report.write_report, tmp_path, "team/mcqa", outcome, rollouts, journal)
    return Page((tmp_path / "report.html").read_text())


async def test_tokens_and_time_are_those_of_all_calls_of_a_rollout(tmp_path: Path) -> None:
    results = {
        RolloutKey(0, 0): {"reward": 1.0, "_nhx_model_calls": [calls(10.0, 12.5), calls(12.0, 14.25)]},
        RolloutKey(0, 1): {"reward": 0.0},
    }
    shown = await written(tmp_path, results, {})
    assert shown.rows("Tokens and time") == [
        ["0", "0", "1", "2", "14", "6", "4.25", ""],
        ["0", "1", "0", "0", "", "", "", ""],
    ]


@pytest.mark.parametrize("nonsense", ["7", None, True, [], 10**40, {"a": 1}])
async def test_a_number_that_is_none_is_not_shown(tmp_path: Path, nonsense: Any) -> None:
    captured = [calls(nonsense, nonsense, nonsense), "not a call", {"response": "no"}]
    shown = await written(tmp_path, {RolloutKey(0, 0): {"reward": 1.0, "_nhx_model_calls": captured}}, {})
    assert shown.rows("Tokens and time") == [["0", "0", "1", "2", "", "3", "", ""]]


def said(*texts: Any) -> dict[str, Any]:
    message = {"type": "message", "content": [{"type": "output_text", "text": text} for text in texts]}
    return {"reward": 1.0, "response": {"output": [{"type": "reasoning", "summary": []}, message]}}


async def test_the_end_of_what_the_model_said_stands_beside_its_reward(tmp_path: Path) -> None:
    shown = await written(tmp_path, {RolloutKey(0, 0): said("x" * 1000 + HOSTILE + "the answer is B")}, {})
    (cell,) = [line[-1] for line in shown.rows("Tokens and time")]
    assert cell.endswith(f"{HOSTILE}the answer is B") and cell.count("x") < 500
    assert not [tag for tag, _ in shown.elements if tag in ("script", "img")]


@pytest.mark.parametrize("output", [None, "B", [None], [{"content": "B"}], [{"content": [7, {"text": 7}]}]])
async def test_an_answer_of_another_form_is_not_shown(tmp_path: Path, output: Any) -> None:
    result = {"reward": 1.0, "response": {"output": output}}
    shown = await written(tmp_path, {RolloutKey(0, 0): result}, {})
    assert [line[-1] for line in shown.rows("Tokens and time")] == [""]


async def test_text_of_environment_code_stays_text(tmp_path: Path) -> None:
    (tmp_path / "gym_run").mkdir()
    (tmp_path / "gym_run" / "gym_env.log").write_text(f"{HOSTILE}\n")
    failures = {RolloutKey(0, 0): Failure(FailureClass.ENVIRONMENT, HOSTILE)}
    shown = await written(tmp_path, {}, failures, prompt=HOSTILE, task_id=HOSTILE, message=HOSTILE, state="Failed")
    assert shown.text.count("<script>alert(1)</script>") == 4
    assert not [tag for tag, _ in shown.elements if tag in ("script", "img")]
    assert not [name for _, attributes in shown.elements for name in attributes if name.startswith("on")]
    assert HOSTILE in [attributes.get("title") for _, attributes in shown.elements]


def test_of_a_log_no_more_is_read_than_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "gym_env.log"
    with log.open("wb") as file:
        file.truncate(64 << 30)
        file.seek(0, 2)
        file.write(b"\nbefore\nlast words\n")
    assert report._last_lines(log)[-2:] == ["before", "last words"]


async def test_logs_of_gym_stand_where_something_failed_and_only_there(tmp_path: Path) -> None:
    (tmp_path / "gym_run").mkdir()
    lines = [f"line {number}" for number in range(1000)]
    (tmp_path / "gym_run" / "gym_env.log").write_text("\n".join(lines))
    good = await written(tmp_path, {RolloutKey(0, 0): {"reward": 1.0}}, {})
    assert "gym_env.log" not in good.text
    (tmp_path / "report.html").unlink()
    bad = await written(tmp_path, {}, {RolloutKey(0, 0): Failure(FailureClass.KILLED, "gone")})
    assert "gym_run/gym_env.log" in bad.text and "line 999" in bad.text and "line 799\n" not in bad.text


async def test_a_job_that_was_never_scored_has_a_page_with_its_reason(tmp_path: Path) -> None:
    shown = await written(tmp_path, {}, {}, state="Failed", message="gym host 0 could not start Gym: ImportError")
    assert "Job team/mcqa: failed" in shown.text and "ImportError" in shown.text


async def test_a_large_job_names_the_file_that_has_the_rest(tmp_path: Path) -> None:
    results = {RolloutKey(task, 0): {"reward": 1.0} for task in range(report.MAX_ROLLOUTS + 5)}
    shown = await written(tmp_path, results, {})
    assert len(shown.rows("Tokens and time")) == report.MAX_ROLLOUTS
    assert "5 more rollouts are in gym_run/model_calls." in shown.text
    assert f"{len(results) - report.MAX_TASKS} more tasks are in trials.jsonl." in shown.text
