"""`report.html` with what the SDK's page lacks: rewards per task and repeat, failures with their logs, tokens and time.

The SDK writes its page (`nhx_evals_sdk.agent_eval.dashboard`); ours is put into it, ahead of its own tables. A job that
failed before it was scored has no such page and gets one with ours alone. The result opens offline: it loads nothing
and runs nothing, and says so to the browser. Every text in it may come from environment code and is escaped.
"""

from __future__ import annotations

import html
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nhx_evals_sdk.agent_eval.persistence import DASHBOARD_FILENAME

from ..api.wire.endpoints import ModelUsage
from ..api.wire.mounts import GYM_RUN
from ..api.wire.reports import Outcome
from . import gym_files
from .journal import Journal
from .metering import calls_of
from .rollouts import MODEL_CALLS, MODEL_USAGE, Failure, Rollout

MAX_TASKS = 1000
MAX_ROLLOUTS = 2000
MAX_FAILURES = 200
MAX_LOG_LINES = 200
"""What is shown of each; all of it is in the files that the page names."""
_MAX_LINE = 2000
_MAX_PROMPT = 120
_MAX_ANSWER = 500
_PAGE_START_BYTES = 64 * 1024
"""In which the page's `head` and the beginning of its `main` are."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
_STYLE = """
.nhx table { border-collapse: collapse; width: 100%; margin: 12px 0 24px; font-variant-numeric: tabular-nums; }
.nhx th, .nhx td { border-bottom: 1px solid var(--line, #ccc); padding: 6px 10px; }
.nhx th, .nhx td { text-align: left; vertical-align: top; }
.nhx td.n, .nhx th.n { text-align: right; white-space: nowrap; }
.nhx pre { max-height: 480px; overflow: auto; padding: 10px; white-space: pre-wrap; overflow-wrap: anywhere; }
.nhx .r { display: inline-block; min-width: 3em; margin: 1px; padding: 1px 6px; border-radius: 4px; text-align: center;
  color: #10231a; background: hsl(calc(120 * var(--v)) 55% 75%); }
.nhx .f { color: #fff; background: #8b1e1e; }
.nhx summary { cursor: pointer; }
"""
_EMPTY = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Agent evaluation</title>
<style>body { font-family: sans-serif; margin: 24px auto; max-width: 1320px; padding: 0 24px; }</style>
</head>
<body>
<main>
</main>
</body>
</html>
"""


@dataclass
class _Effort:
    """What one rollout's model calls took. None: nobody says."""

    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class _Row:
    rollout: Rollout
    reward: float | None
    failure: Failure | None


def write_report(directory: Path, job: str, outcome: Outcome, rollouts: Sequence[Rollout], journal: Journal) -> None:
    """Put our part into the bundle's page, or make one. Raises `OSError`."""
    rows = [
        _Row(rollout, journal.results.reward(rollout.key), journal.failures.get(rollout.key)) for rollout in rollouts
    ]
    sections = [
        _verdict(job, outcome),
        _rewards(rows),
        _failures(rows),
        _logs(directory, outcome, rows),
        _efforts(rows, journal),
    ]
    _put_into(directory / DASHBOARD_FILENAME, "".join(sections))


def _put_into(page: Path, body: str) -> None:
    """At the beginning of the page's `main`. The rest is copied as it is: a large job's page is a large one."""
    page.parent.mkdir(parents=True, exist_ok=True)
    if not page.is_file():
        page.write_text(_EMPTY, encoding="utf-8")
    head = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<style>{_STYLE}</style>\n'
    main = f'<main>\n<div class="nhx">{body}</div>\n'
    fresh = page.with_suffix(".tmp")
    with page.open("rb") as old, fresh.open("wb") as new:
        start = old.read(_PAGE_START_BYTES)
        for tag, text in ((b"<head>", head), (b"<main>", main)):
            start = start.replace(tag, text.encode("utf-8", errors="replace"), 1)
        new.write(start)
        shutil.copyfileobj(old, new)
    fresh.replace(page)


def _effort_of(row: _Row, result: Mapping[str, Any]) -> _Effort:
    counted = row.failure.model_usage if row.failure else result.get(MODEL_USAGE)
    usages = [ModelUsage.model_validate(usage) for usage in (counted or {}).values()]
    if not usages:
        return _effort(result.get(MODEL_CALLS))
    return _Effort(
        calls=sum(calls_of(usage) for usage in usages),
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        seconds=sum(usage.seconds for usage in usages),
    )


def _effort(calls: Any) -> _Effort:
    """Numbers come from the sandbox: what is none, or out of all measure, is not shown."""
    known = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    usages = [usage for call in known if isinstance(usage := _get(call, "response", "usage"), Mapping)]
    starts = [at for call in known if (at := _number(call.get("started_at"))) is not None]
    ends = [at for call in known if (at := _number(call.get("completed_at"))) is not None]
    return _Effort(
        calls=len(known),
        input_tokens=_total(usages, "input_tokens", "prompt_tokens"),
        output_tokens=_total(usages, "output_tokens", "completion_tokens"),
        seconds=max(ends) - min(starts) if starts and ends and max(ends) >= min(starts) else None,
    )


def _total(usages: Iterable[Mapping[str, Any]], *names: str) -> int | None:
    found = [int(value) for usage in usages for name in names if (value := _number(usage.get(name))) is not None]
    return sum(found) if found else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e15 and math.isfinite(value) else None


def _get(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


# Sections


def _verdict(job: str, outcome: Outcome) -> str:
    lines = [outcome.message, *outcome.degraded, *outcome.warnings]
    said = "".join(f"<li>{_e(line)}</li>" for line in lines if line)
    state = {"Complete": "complete", "Failed": "failed"}.get(outcome.state, outcome.state)
    return f"<h2>Job {_e(job)}: {_e(state)}</h2><p>{_e(outcome.reason)}</p>" + (f"<ul>{said}</ul>" if said else "")


def _rewards(rows: Sequence[_Row]) -> str:
    by_task: dict[int, list[_Row]] = {}
    for row in rows:
        by_task.setdefault(row.rollout.key.task, []).append(row)
    if not by_task:
        return ""
    best = max((row.reward for row in rows if row.reward is not None), default=1.0)
    scale = max(best, 1.0)
    lines = []
    for number, repeats in list(by_task.items())[:MAX_TASKS]:
        rewards = [row.reward for row in repeats if row.reward is not None]
        mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "none"
        cells = "".join(_reward(row, scale) for row in repeats)
        first = repeats[0].rollout
        lines.append(
            f'<tr><td class="n">{number}</td><td title="{_e(first.task_id)}">{_e(_prompt(first.row))}</td>'
            f'<td class="n">{mean}</td><td>{cells}</td></tr>'
        )
    head = '<tr><th class="n">Task</th><th>Prompt</th><th class="n">Mean</th><th>Reward of each repeat</th></tr>'
    return f"<h2>Rewards</h2>{_table(head, lines)}{_left_out(len(by_task), MAX_TASKS, 'tasks', 'trials.jsonl')}"


def _reward(row: _Row, scale: float) -> str:
    where = f"task {row.rollout.key.task}, repeat {row.rollout.key.rollout}"
    if row.reward is None:
        kind = row.failure.failure_class.value if row.failure else "not collected"
        return f'<span class="r f" title="{_e(where)}">{_e(kind)}</span>'
    share = min(1.0, max(0.0, row.reward / scale))
    return f'<span class="r" style="--v:{share:.3f}" title="{_e(where)}">{row.reward:.3g}</span>'


def _failures(rows: Sequence[_Row]) -> str:
    failed = [row for row in rows if row.reward is None]
    if not failed:
        return ""
    lines = []
    for row in failed[:MAX_FAILURES]:
        kind = row.failure.failure_class.value if row.failure else "killed"
        words = row.failure.message if row.failure else "not collected before the job ended"
        lines.append(
            f'<tr><td class="n">{row.rollout.key.task}</td><td class="n">{row.rollout.key.rollout}</td>'
            f"<td>{_e(kind)}</td><td><pre>{_e(words)}</pre></td></tr>"
        )
    head = '<tr><th class="n">Task</th><th class="n">Repeat</th><th>Class</th><th>What was said</th></tr>'
    more = _left_out(len(failed), MAX_FAILURES, "failures", f"{GYM_RUN}/{gym_files.FAILURES}")
    return f"<h2>Failures</h2>{_table(head, lines)}{more}"


def _logs(directory: Path, outcome: Outcome, rows: Sequence[_Row]) -> str:
    """The end of each log of Gym's, where something failed."""
    if outcome.state != "Failed" and all(row.reward is not None for row in rows):
        return ""
    parts = []
    for file in sorted((directory / GYM_RUN).glob("*.log")):
        name = f"{GYM_RUN}/{file.name}"
        tail = "".join(f"{line.rstrip()[:_MAX_LINE]}\n" for line in _last_lines(file))
        parts.append(f"<details><summary>{_link(name)}, its last lines</summary><pre>{_e(tail)}</pre></details>")
    return f"<h2>Logs</h2>{''.join(parts)}" if parts else ""


def _last_lines(file: Path) -> list[str]:
    """The last lines of a log, whatever their length: no more of it is read than is shown."""
    with file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - MAX_LOG_LINES * _MAX_LINE))
        return log.read().decode("utf-8", errors="replace").splitlines()[-MAX_LOG_LINES:]


def _efforts(rows: Sequence[_Row], journal: Journal) -> str:
    if not rows:
        return ""
    results = ((row, journal.results.get(row.rollout.key, {})) for row in rows[:MAX_ROLLOUTS])
    shown = [(row, _effort_of(row, result), _answer(result)) for row, result in results]
    lines = [
        f'<tr><td class="n">{row.rollout.key.task}</td><td class="n">{row.rollout.key.rollout}</td>'
        f'<td class="n">{"" if row.reward is None else f"{row.reward:.3g}"}</td><td class="n">{effort.calls}</td>'
        f'<td class="n">{_count(effort.input_tokens)}</td><td class="n">{_count(effort.output_tokens)}</td>'
        f'<td class="n">{"" if effort.seconds is None else f"{effort.seconds:.2f}"}</td>'
        f"<td>{_folded(answer)}</td></tr>"
        for row, effort, answer in shown
    ]
    names = ("Task", "Repeat", "Reward", "Model calls", "Tokens in", "Tokens out", "Seconds")
    head = f"<tr>{''.join(f'<th class="n">{name}</th>' for name in names)}<th>Answer</th></tr>"
    note = (
        "<p>As the evaluator's gateway counted; seconds are what a rollout's calls took, each by itself. Where it "
        "could not tell calls apart by rollout, by what Gym captured of them: from the start of the first to the end "
        "of the last. An empty cell was not captured. Of an answer the end is shown; all of it is in "
        f"{_link(f'{GYM_RUN}/{gym_files.ROLLOUTS}')} (response.output).</p>"
    )
    more = _left_out(len(rows), MAX_ROLLOUTS, "rollouts", f"{GYM_RUN}/model_calls")
    return f"<h2>Tokens and time</h2>{note}{_table(head, lines)}{more}"


# Parts


def _table(head: str, lines: Iterable[str]) -> str:
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def _left_out(total: int, shown: int, what: str, file: str) -> str:
    return f"<p>{total - shown} more {what} are in {_link(file)}.</p>" if total > shown else ""


def _link(file: str) -> str:
    return f'<a href="{_e(file)}">{_e(file)}</a>'


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def _prompt(row: Mapping[str, Any]) -> str:
    """The beginning of what the user asks."""
    asked = _get(row, "responses_create_params", "input")
    if isinstance(asked, list):
        users = [entry for entry in asked if isinstance(entry, Mapping) and entry.get("role") == "user"]
        asked = users[-1].get("content") if users else None
    if isinstance(asked, list):
        asked = next((part["text"] for part in asked if isinstance(part, Mapping) and "text" in part), None)
    text = " ".join(str(asked or "").split())
    return text if len(text) <= _MAX_PROMPT else f"{text[: _MAX_PROMPT - 1]}…"


def _answer(result: Mapping[str, Any]) -> str:
    """The end of what the model said last, in the form of the Responses API that Gym keeps it in."""
    output = _get(result, "response", "output")
    entries = output if isinstance(output, list) else []
    parts = next((parts for entry in reversed(entries) if isinstance(parts := _get(entry, "content"), list)), [])
    texts = [text for part in parts if isinstance(text := _get(part, "text"), str)]
    return texts[-1].strip()[-_MAX_ANSWER:] if texts else ""


def _folded(text: str) -> str:
    return f"<details><summary>its end</summary><pre>{_e(text)}</pre></details>" if text else ""


def _e(text: object) -> str:
    return html.escape(str(text), quote=True)
