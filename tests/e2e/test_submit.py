"""One runner, described once, on one machine and on the cluster: `examples/submit` as its users call it."""

from __future__ import annotations

import pytest

from e2e.test_mcqa import TIMED


def test_a_submitted_runner_has_the_aggregates_of_its_local_run(
    run_locally: dict[str, float], submitted_runner: dict[str, float]
) -> None:
    assert run_locally["gym_reward.reward"] == pytest.approx(0.8)
    assert submitted_runner.keys() == run_locally.keys()
    for name in run_locally.keys() - {name for name in run_locally if TIMED.search(name)}:
        assert submitted_runner[name] == pytest.approx(run_locally[name]), name
