"""What `make bench` takes from the evaluator's log."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

import pytest

from bench.run import LOGGED, STEPS, Clock
from nhx_gym_operator.api.wire.endpoints import HostState
from unit.test_evaluator_hosts import ADDRESS, ready, registry


def stamped(text: str, seconds: float) -> str:
    """As `kubectl logs --timestamps` shows a line of so many seconds later."""
    moment = datetime.fromtimestamp(time.time() + seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}123Z INFO:nhx_gym_operator.evaluator.hosts:{text}"


async def test_when_a_host_started_and_was_ready_is_read_from_what_the_registry_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    clock.saw("gate passed")
    async with registry(9) as known:
        for state in (HostState.STARTING, HostState.STARTING, HostState.READY):
            known.register(ready(9, state=state), ADDRESS)
    words = [record.getMessage() for record in caplog.records]
    clock.read("\n".join(stamped(text, 10.0 * number) for number, text in enumerate(words, 1)))
    assert set(LOGGED) <= set(STEPS)
    assert clock.seconds == pytest.approx({"gate passed": 10.0, "Gym ready": 10.0 * len(words)}, abs=5.0)
