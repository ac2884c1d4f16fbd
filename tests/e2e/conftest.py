"""Real pods on the local cluster."""

from __future__ import annotations

import pytest

from e2e import playing


def pytest_configure(config: pytest.Config) -> None:
    playing.join(config)
