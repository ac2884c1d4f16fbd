"""What several unit tests are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_kubectl import FakeKubectl


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubectl]:
    """A kubectl that answers from a folder, in place of the one on PATH."""
    fake = FakeKubectl(tmp_path / "cluster")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    yield fake
