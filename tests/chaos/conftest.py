"""What the tests of this folder share: one installation with the light host, two operators, and the model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos import world
from chaos.model import Model, served
from chaos.world import LIGHT
from devcluster.settings import NODE_IP
from support.job_watch import JobWatch


@pytest.fixture(scope="session")
def alone() -> Iterator[None]:
    with world.alone():
        yield


@pytest.fixture(scope="session")
def light(alone: None) -> Iterator[None]:
    """`LIGHT` is installed."""
    world.build_light_image()
    with world.installed(LIGHT):
        yield


@pytest.fixture
def model() -> Iterator[Model]:
    """It knows of no job of another test."""
    with served(NODE_IP) as found:
        yield found


@pytest.fixture
def watch(alone: None) -> Iterator[JobWatch]:
    found = JobWatch()
    yield found
    found.close()
