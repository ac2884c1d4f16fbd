"""A large dataset through the evaluator, without Gym: `python bench/many_rows.py [ROWS] [REPEATS]`.

Rows and recorded rollouts have the shape and size of mcqa's. What is measured is what the evaluator does before and
after collection: reading the rows, opening a journal that an earlier attempt has filled, writing Gym's files, scoring,
and the bundle. Prints the table of docs/performance.md; memory is the largest resident set of this one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nhx_gym_operator.api.wire.plans import EvaluatorPlan
from nhx_gym_operator.evaluator.dataset import Subset, load_dataset
from nhx_gym_operator.evaluator.journal import Journal, JournalHeader
from nhx_gym_operator.evaluator.rollouts import Rollout, RolloutKey
from nhx_gym_operator.evaluator.scoring import evaluate
from nhx_gym_operator.evaluator.trials import JournaledGymRunner
from unit.evaluator_fakes import make_plan, target

AT_ONCE = 256
"""Rollouts that are recorded at once, as by so many of `concurrency`."""
_WORDS = "next generation sequencing identifies both genetic and epigenetic alterations of a genome in a single test "


def main(rows: int = 100_000, repeats: int = 1) -> int:
    logging.basicConfig(level=logging.ERROR)
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), rows, repeats, steps))
    print(f"| {rows:,} rows x {repeats} | seconds | MiB |\n|---|---|---|")
    for name, seconds, memory in steps:
        print(f"| {name} | {seconds:.1f} | {memory:.0f} |")
    return 0


async def _run(folder: Path, rows: int, repeats: int, steps: list[tuple[str, float, float]]) -> None:
    file = folder / "rows.jsonl"
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(_row(number)) + "\n" for number in range(rows))
    print(f"dataset {file.stat().st_size / 2**20:.0f} MiB", file=sys.stderr)
    plan = make_plan(file, target=target(num_repeats=repeats))

    with _step("read the rows", steps):
        dataset = load_dataset(file, "rows.jsonl", Subset(), copy=folder / "copy" / "rows.jsonl")
    header = JournalHeader(plan.uid, dataset.digest, repeats)
    journal = Journal.open(folder / "journal.jsonl", header)
    with _step("record rollouts in the journal", steps):
        await _record(journal, [task.id for task in dataset.tasks], repeats)
        await journal.close()
    print(f"journal {journal.path.stat().st_size / 2**20:.0f} MiB", file=sys.stderr)
    del journal
    with _step("open the journal again", steps):
        journal = Journal.open(folder / "journal.jsonl", header)
    with _step("write Gym's files, score, write the bundle", steps):
        await _evaluate(plan, dataset.tasks, journal, folder / "attempt-1")
    await journal.close()
    bundle = sum(path.stat().st_size for path in (folder / "attempt-1").rglob("*") if path.is_file())
    print(f"bundle {bundle / 2**20:.0f} MiB", file=sys.stderr)


async def _record(journal: Journal, task_ids: list[str], repeats: int) -> None:
    waiting = iter([(task, repeat) for task in range(len(task_ids)) for repeat in range(repeats)])

    async def work() -> None:
        for task, repeat in waiting:
            await journal.add_result(RolloutKey(task, repeat), task_ids[task], _result(task, repeat), task % 2)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def _evaluate(plan: EvaluatorPlan, tasks: list[Any], journal: Journal, directory: Path) -> None:
    async def collect(_: list[Rollout]) -> None:
        return None

    runner = JournaledGymRunner(plan, journal, directory / "gym_run", collect)
    summary = await evaluate(plan, tasks, runner, directory)
    assert summary.trial_count == len(tasks) * plan.target.num_repeats


@contextlib.contextmanager
def _step(name: str, steps: list[tuple[str, float, float]]) -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5")  # the largest resident set counts from here
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    steps.append((name, seconds, int(peak[1]) / 1024))
    print(f"{name}: {seconds:.1f} s, {int(peak[1]) / 1024:.0f} MiB", file=sys.stderr)


def _row(number: int) -> dict[str, Any]:
    """1.9 kB, as mcqa's rows."""
    options = {letter: f"{letter}: {_WORDS}{number}" for letter in "ABCDEFG"}
    prompt = "\n".join(["Which of these statements is true?", *options.values()])
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
        "options": [{letter: text} for letter, text in options.items()],
        "expected_answer": "B",
        "uuid": f"{number:032x}",
    }


def _result(task: int, repeat: int) -> dict[str, Any]:
    """9 kB: the row, an answer of 1,500 characters, and the model call behind it."""
    row = _row(task)
    response = {
        "id": f"resp_{task:032x}",
        "created_at": 1795983477.0,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "org/Name-3.2",
        "object": "response",
        "output": [
            {
                "id": f"msg_{task:032x}",
                "content": [{"annotations": [], "text": _WORDS * 14, "type": "output_text", "logprobs": None}],
                "role": "assistant",
                "status": "completed",
                "type": "message",
            }
        ],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 254,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 475,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 729,
        },
    }
    call = {
        "model_call_id": f"{task:032x}",
        "dialect": "responses",
        "model_ref": {"type": "responses_api_models", "name": "policy_model"},
        "started_at": 1795983410.9,
        "completed_at": 1795983477.4,
        "latency_ms": 66465.7,
        "status_code": 200,
        "error_category": None,
        "request": row["responses_create_params"],
        "response": response,
    }
    return {
        **row,
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "agent_ref": {"name": "mcqa_simple_agent"},
        "response": response,
        "reward": float(task % 2),
        "extracted_answer": "B",
        "_nhx_model_calls": [call],
    }


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
