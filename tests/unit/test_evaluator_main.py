"""The program itself, as its own process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from nhx_gym_operator.api.outcome import decode_outcome
from nhx_gym_operator.api.wire.plans import EVALUATOR_PLAN_ENV, FETCH_PLAN_ENV, OUTCOME_PLAN_ENV, STAGE_PLAN_ENV
from nhx_gym_operator.evaluator import __main__ as program
from nhx_gym_operator.evaluator.plan import Paths, PlanError, load_plan, load_tokens
from unit.evaluator_fakes import make_plan, paths_in, row, write_rows

PROGRAM = """
import sys
from pathlib import Path
from nhx_gym_operator.evaluator import __main__ as program, run
from unit.evaluator_fakes import paths_in
ports = run.Ports("127.0.0.1", 0, 0, None)
make = run.Evaluation
program.Evaluation = lambda plan, paths, tokens: make(plan, paths, tokens, ports)
program.Paths = lambda: paths_in(Path(sys.argv[1]))
sys.exit(program.main(["run"]))
"""


def test_a_missing_plan_is_named() -> None:
    with pytest.raises(PlanError, match="NHX_EVALUATOR_PLAN is not set"):
        load_plan({})


def test_an_invalid_plan_is_named_by_field(tmp_path: Path) -> None:
    plan = make_plan(tmp_path / "x").model_dump(mode="json")
    plan["target"]["concurrency"] = "many"
    with pytest.raises(PlanError, match=r"target\.concurrency"):
        load_plan({EVALUATOR_PLAN_ENV: json.dumps(plan)})
    with pytest.raises(PlanError, match="no model `policy`"):
        load_plan({EVALUATOR_PLAN_ENV: json.dumps(make_plan(tmp_path / "x", models=[]).model_dump(mode="json"))})


def test_a_missing_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "progress").write_text("p\n")
    with pytest.raises(PlanError, match="host-0"):
        load_tokens(tmp_path, make_plan(tmp_path / "x"))


async def started(directory: Path) -> tuple[Paths, asyncio.subprocess.Process]:
    """The program on one row, and where its files are."""
    paths = paths_in(directory)
    paths.tokens.mkdir()
    (paths.tokens / "progress").write_text("p")
    (paths.tokens / "host-0").write_text("h")
    plan = make_plan(write_rows(directory / "rows.jsonl", [row(0)]))
    environment = {**os.environ, EVALUATOR_PLAN_ENV: plan.model_dump_json(), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(directory), env=environment, stderr=asyncio.subprocess.PIPE
    )
    return paths, process


async def test_sigterm_ends_the_program_at_once_with_an_outcome(tmp_path: Path) -> None:
    paths, process = await started(tmp_path)
    try:
        async with asyncio.timeout(180):
            while not paths.log.exists():
                await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    outcome = decode_outcome(paths.termination_log.read_bytes())
    assert process.returncode == 1, errors.decode()
    assert (outcome.state, outcome.reason, outcome.progress.total) == ("Failed", "EvaluatorLost", 2)
    logged = paths.log.read_text().splitlines()
    assert "job team/mcqa, attempt 1" in logged[0] and logged[-1].endswith("ended by a signal")


async def test_a_volume_with_another_jobs_rollouts_gets_no_log_of_the_job_that_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "results" / "attempt-1" / "gym_run" / "rollouts.jsonl"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    paths, process = await started(tmp_path)
    _, errors = await asyncio.wait_for(process.communicate(), 180)
    assert decode_outcome(paths.termination_log.read_bytes()).reason == "ResultsNotFresh", errors.decode()
    assert [file for file in paths.results.rglob("*") if file.is_file()] == [theirs]


def test_an_evaluator_without_a_plan_still_leaves_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVALUATOR_PLAN_ENV, raising=False)
    paths = paths_in(tmp_path)
    assert program._run(paths) == 1
    outcome = decode_outcome(paths.termination_log.read_bytes())
    assert (outcome.state, outcome.reason) == ("Failed", "EvaluationFailed")
    assert EVALUATOR_PLAN_ENV in outcome.message


@pytest.mark.parametrize(
    ("command", "variable"), [("stage", STAGE_PLAN_ENV), ("outcome", OUTCOME_PLAN_ENV), ("fetch", FETCH_PLAN_ENV)]
)
@pytest.mark.parametrize(("plan", "words"), [(None, "is not set"), ("{}", "is not a valid plan: ")])
def test_a_program_without_a_plan_that_it_can_read_says_so_in_its_termination_message(
    command: str, variable: str, plan: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    if plan is not None:
        monkeypatch.setenv(variable, plan)
    paths = paths_in(tmp_path)
    monkeypatch.setattr(program, "Paths", lambda: paths)
    assert program.main([command]) == 1
    assert paths.termination_log.read_text().startswith(f"{variable} {words}")


def test_a_log_record_is_bounded_acts_on_no_terminal_and_passes_for_no_other() -> None:
    forged = "x\x1b[2J\n2026-01-01 00:00:00,000 INFO all is well" + "y" * 100_000
    record = logging.LogRecord("sdk", logging.WARNING, __file__, 1, "usage %s", (forged,), None)
    lines = program.Readable(program._FORMAT).format(record).splitlines()
    assert lines[0].endswith(r"WARNING sdk: usage x\x1b[2J") and lines[1].startswith("    2026-01-01")
    assert len(lines) == 2 and 15_000 < len(lines[1]) < 17_000 and lines[1].endswith("more characters")
