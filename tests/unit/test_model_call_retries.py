"""The pauses between two tries of a model call: the law of openai-python's `_calculate_retry_timeout`."""

from __future__ import annotations

import pytest

from nhx_gym_operator.evaluator.retries import delay_before_retry


@pytest.mark.parametrize(("number", "most"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (40, 8.0)])
def test_a_pause_doubles_up_to_eight_seconds_and_chance_takes_off_up_to_a_quarter(number: int, most: float) -> None:
    pauses = [delay_before_retry(number, {}) for _ in range(50)]
    assert all(0.75 * most <= pause <= most for pause in pauses)
    # Fifty calls that failed together do not come back together.
    assert max(pauses) - min(pauses) > 0.1 * most


@pytest.mark.parametrize("headers", [{"retry-after": "20"}, {"retry-after-ms": "20000", "retry-after": "1"}])
def test_a_servers_wish_is_kept_to_the_letter(headers: dict[str, str]) -> None:
    assert {delay_before_retry(number, headers) for number in range(10)} == {20.0}
