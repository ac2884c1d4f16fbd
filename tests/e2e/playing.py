"""A pytest plugin: plays scenarios on the local cluster, once a session for all folders of tests that ask for some.

NHX_E2E_KEEP=1 leaves everything in place after a failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import e2e.filesets
import e2e.scenarios
import e2e.stuck
import security.scenarios
from e2e import stage as stages
from e2e.runs import Run
from e2e.stage import Stage
from e2e.world import World

KEEP_VARIABLE = "NHX_E2E_KEEP"
STORIES = (e2e.filesets, e2e.scenarios, e2e.stuck, security.scenarios)
"""Importing them registers what they tell."""
_NAME = "scenarios"
_STAGE = pytest.StashKey[Stage]()


def join(config: pytest.Config) -> None:
    """Makes the scenarios' fixtures known. Two folders with a fixture each would build the world twice."""
    if not config.pluginmanager.has_plugin(_NAME):
        config.pluginmanager.register(sys.modules[__name__], _NAME)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is as seldom as its scenarios."""
    for item in items:
        if stages.nightly_names() & _asked_for([item]):
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The cluster, with all scenarios under way that the collected tests ask for."""
    world = World(tmp_path_factory.mktemp("e2e"))
    playing = None
    try:
        world.build()
        playing = Stage(world, _asked_for(request.session.items))
        request.config.stash[_STAGE] = playing
        yield playing
    finally:
        world.close()
        if playing:
            playing.close()
        if not (os.environ.get(KEEP_VARIABLE) == "1" and request.session.testsfailed):
            world.remove()


def _scenario_fixture(name: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def fixture(stage: Stage) -> Any:
        return stage.result(name)

    return fixture


for _name in stages.names():
    globals()[_name] = _scenario_fixture(_name)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    """The run of the scenario that a test is parametrized with."""
    return request.getfixturevalue(request.param)


def _asked_for(items: list[pytest.Item]) -> set[str]:
    known = set(stages.names())
    asked: set[str] = set()
    for item in items:
        asked |= known & set(getattr(item, "fixturenames", ()))
        parameters = getattr(item, "callspec", None)
        if parameters:
            asked |= known & {value for value in parameters.params.values() if isinstance(value, str)}
    return asked


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What ran, by digest, and how long each scenario took."""
    stage = config.stash.get(_STAGE, None)
    if stage is None:
        return
    terminalreporter.section("scenarios on the cluster")
    for name, seconds in stage.seconds.items():
        run = stage.outcome(name)
        ran = (run.status.get("ran") or {}) if isinstance(run, Run) else {}
        images = " ".join(f"{role}={digest}" for role, digest in sorted((ran.get("images") or {}).items()))
        terminalreporter.line(f"{name:20} {seconds:6.0f} s  {images}")
