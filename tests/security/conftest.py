"""Attacks, on the stage that the end-to-end tests play on."""

from __future__ import annotations

import pytest

from e2e import playing
from security.scenarios import RUNTIMES, HostileRun


def pytest_configure(config: pytest.Config) -> None:
    playing.join(config)


@pytest.fixture(params=sorted(RUNTIMES))
def attacked(request: pytest.FixtureRequest, hostile: dict[str, HostileRun]) -> HostileRun:
    """The hostile job under one runtime."""
    return hostile[request.param]
