"""Where rows come from, and what a job may cost, on real pods."""

from __future__ import annotations

from e2e.manifests import MCQA_TASKS, REPEATS, WORDCHECK, WORDCHECK_TASKS
from e2e.runs import Run, rows_of
from e2e.scenarios import LIMIT, MANY_ROWS
from support.job_watch import condition


def ids(run: Run) -> list[str]:
    assert run.bundle
    return [task["id"] for task in rows_of(run.bundle / "tasks.jsonl")]


def test_a_limit_takes_the_first_rows(missing_inputs: Run) -> None:
    assert missing_inputs.bundle
    taken = [row["task"] for row in rows_of(missing_inputs.bundle / "gym_run/gym_input.jsonl")]
    assert taken == [row["task"] for row in rows_of(WORDCHECK / "rows.jsonl")][:LIMIT]
    assert LIMIT < WORDCHECK_TASKS


def test_rows_on_a_claim_are_the_tasks_of_the_bundled_file_however_they_were_saved(
    rows_on_claim: Run, mcqa_runc: Run
) -> None:
    assert ids(rows_on_claim) == ids(mcqa_runc)
    assert rows_on_claim.aggregates["gym_reward.reward"] == mcqa_runc.aggregates["gym_reward.reward"]


def test_the_row_that_stands_twice_is_one_task_and_condition_and_event_say_so(rows_on_claim: Run) -> None:
    told = f"{MCQA_TASKS + 1} rows, {MCQA_TASKS} distinct"
    assert told in condition(rows_on_claim.job, "RowsCollapsed")["message"]
    assert condition(rows_on_claim.job, "Degraded") == {}
    assert [event["type"] for event in rows_on_claim.facts["events"] if told in event["message"]] == ["Warning"]


def test_a_job_out_of_tokens_makes_no_further_call_and_keeps_what_it_has(out_of_tokens: Run) -> None:
    failed = condition(out_of_tokens.job, "Failed")
    assert failed["reason"] == "TokenLimitReached" and "spec.limits.tokens allows 1" in failed["message"]
    assert out_of_tokens.status["usage"]["policy"]["calls"] == 1
    assert out_of_tokens.status["progress"]["done"] == 1
    assert out_of_tokens.status["progress"]["total"] == (MCQA_TASKS - 1) * REPEATS
    assert out_of_tokens.aggregates["gym_reward.reward"]["count"] == 1


def test_five_hundred_rows_on_a_claim_go_through_real_gym(many_rows: Run) -> None:
    assert many_rows.status["progress"]["summary"] == f"{MANY_ROWS}/{MANY_ROWS}"
    reward = many_rows.aggregates["gym_reward.reward"]
    assert (reward["count"], round(reward["value"], 9)) == (MANY_ROWS, 0.8)
    assert len(set(ids(many_rows))) == MANY_ROWS
