"""What becomes of what the environment says: its own rewards count, and nothing else that it claims."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.runs import strict_json
from security.scenarios import FAILED_ROWS, LAST, ROWS, UNREAL_ROWS, HostileRun

LOG_FLOOD_BYTES = 12 << 20
"""Of `app.LOG_FLOOD_BYTES`: half of it in lines, half in one."""
LONGEST_LINE_BYTES = (1 << 20) + (1 << 16)
"""Of a host's output (`gym_host/output.py`): what it holds of a line, and what it reads at once."""
HONEST = [row for row in ROWS if row not in (*FAILED_ROWS, "index")]
MEAN = (0.25 * len(HONEST) + 1.0) / (len(HONEST) + 1)
"""Of `app.REWARD`, and the row that claims another's index with a reward of its own, which it may give itself."""


def test_no_host_registers_for_another_or_in_another_shape(attacked: HostileRun) -> None:
    assert set(attacked.saw("register-another-host").values()) == {403}
    assert set(attacked.saw("register-a-bad-shape")) == {422}


def test_another_jobs_token_opens_nothing(attacked: HostileRun) -> None:
    assert set(attacked.saw("token-of-another-job").values()) == {401}


def test_a_hosts_token_does_not_open_what_is_the_operators(attacked: HostileRun) -> None:
    assert attacked.saw("token-in-the-wrong-direction") == {"progress": 401}


def test_progress_and_results_are_not_to_be_posted(attacked: HostileRun) -> None:
    assert set(attacked.saw("forge-progress").values()) <= {401, 404, 405}


def test_what_a_host_says_of_itself_replaces_nothing(attacked: HostileRun) -> None:
    assert attacked.saw("forge-facts") == 200, "it may speak of itself"
    assert not [text for text in _strings(attacked.status) if "forged" in text]


def test_the_kernel_of_a_finished_job_is_the_one_that_was_there_before_the_environment(
    hostile: dict[str, HostileRun],
) -> None:
    assert "Linux" in hostile["runc"].status["ran"]["hostKernel"]


def test_a_rollout_is_recorded_as_the_one_that_was_asked_for(attacked: HostileRun) -> None:
    asked = {name: index for index, name in enumerate(ROWS)}
    recorded = {name: (row["_ng_task_index"], row["_ng_rollout_index"]) for name, row in attacked.rows.items()}
    assert recorded == {name: (asked[name], 0) for name in recorded}
    assert {*HONEST, "index"} - recorded.keys() <= {LAST}


def test_what_is_no_answer_is_a_failed_trial(attacked: HostileRun) -> None:
    assert attacked.failures.keys() - {LAST} == set(FAILED_ROWS)
    assert {attacked.failures[row] for row in UNREAL_ROWS} == {"environment"}
    assert not attacked.rows.keys() & set(FAILED_ROWS)


def test_what_is_no_answer_is_no_zero_in_a_finished_jobs_mean(hostile: dict[str, HostileRun]) -> None:
    reward = hostile["runc"].aggregates["gym_reward.reward"]
    assert reward["value"] == pytest.approx(MEAN) and reward["count"] == len(HONEST) + 1


def test_tokens_are_those_that_the_gateway_counted(attacked: HostileRun) -> None:
    assert 0 < attacked.status["usage"]["policy"]["totalTokens"] < 10_000


def test_an_environments_aggregates_stand_beside_ours_under_gyms_name(hostile: dict[str, HostileRun]) -> None:
    run = hostile["runc"]
    assert run.bundle
    scores = strict_json((run.bundle / "summary.json").read_text())["scores"]["scores"]
    found = {score["name"]: score.get("value", score.get("mean")) for score in scores}
    assert found["runner.gym.coverage"] == 1.0, "the forgery did not arrive"
    assert found["gym_reward.reward"] == pytest.approx(MEAN)
    forged = [name for name in run.aggregates if name.startswith("runner.gym.")]
    assert forged and all(run.aggregates[name]["unit"] == "gym" for name in forged)
    assert run.aggregates["gym_reward.reward"]["unit"] == "reward"
    assert run.status["coverage"] == pytest.approx((len(HONEST) + 1) / len(ROWS))


def test_nothing_in_the_status_steers_a_terminal(attacked: HostileRun) -> None:
    for state in attacked.states:
        for text in _strings(state.get("status", {})):
            assert all(character.isprintable() or character == "\n" for character in text), ascii(text)


def test_a_flood_of_the_log_ends_nothing_and_what_has_no_lines_gets_some(hostile: dict[str, HostileRun]) -> None:
    """Of the run whose host lived to hand its log over. A writer that never ends its line would fill the host's memory
    until it did; so its output is cut."""
    run = hostile["runc"]
    assert run.bundle and "log" in run.rows
    log = (run.bundle / "gym_run/gym_env.log").read_bytes()
    assert log.count(b"x") >= LOG_FLOOD_BYTES // 4 and log.count(b"y") >= LOG_FLOOD_BYTES // 2, "it did not arrive"
    assert max(map(len, log.splitlines())) <= LONGEST_LINE_BYTES


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    else:
        json.dumps(value)
