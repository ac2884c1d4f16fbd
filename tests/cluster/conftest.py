"""A real API server, an operator in this process, and a namespace for each test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import used_rights
from cluster.control_plane import control_plane, operators_kubeconfig
from cluster.rights import Rights
from cluster.world import World
from nhx_gym_operator.controller.app import Operator
from nhx_gym_operator.controller.kube import KubeClient, load_configuration
from nhx_gym_operator.controller.settings import Installation
from nhx_gym_operator.workloads.workload import ApiAddresses
from support.controller_values import KEY, settings

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
USED_RIGHTS = pytest.StashKey[used_rights.UsedRights]()
_numbers = count(1)


class OperatorThread(threading.Thread):
    """An operator with a thread and a loop of its own, as in a process of its own."""

    def __init__(
        self, kubeconfig: str, installation: Installation, identity: str = "", health_port: int | None = None
    ) -> None:
        super().__init__(name=f"operator {identity}", daemon=True)
        self._identity = identity
        self._health_port = health_port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kubeconfig = kubeconfig
        self._installation = installation
        self._made = threading.Event()
        self._operator: Operator | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._operate())
        except BaseException as error:
            self._failure = error

    async def _operate(self) -> None:
        configuration = await load_configuration(self._kubeconfig)
        self._loop = asyncio.get_running_loop()
        self._operator = Operator(
            self._installation, configuration, health_port=self._health_port, identity=self._identity
        )
        self._made.set()
        await self._operator.run()

    def wait_until_ready(self) -> None:
        assert self._made.wait(START_SECONDS) and self._operator is not None, self._failure
        assert self._operator.ready.wait(START_SECONDS), self._failure or "the operator did not start"

    def freeze(self, seconds: float) -> None:
        """Nothing of the operator runs for so long: a node that hangs, a process that was stopped."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def stop(self) -> None:
        if self._operator is not None:
            self._operator.stop()
        self.join(START_SECONDS)
        assert not self.is_alive(), "the operator did not stop"
        assert self._failure is None, self._failure


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(used_rights.OPTION, action="store_true", help="fail if the chart gives a right that no test used")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[USED_RIGHTS] = used_rights.UsedRights(config)
    config.pluginmanager.register(config.stash[USED_RIGHTS])


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with control_plane(tmp_path_factory.mktemp("control-plane")) as path:
        asyncio.run(prepare(path))
        yield path


async def prepare(kubeconfig: Path) -> None:
    """The CRDs as they are in the tree, and the RuntimeClass that settings name by default."""
    api = KubeClient(await load_configuration(str(kubeconfig)))
    try:
        world = World(api, "default")
        for file in sorted((ROOT / "crds").glob("*.yaml")):
            await world.create_definition(yaml.safe_load(file.read_text()))
        await world.create_runtime_class("gvisor")
    finally:
        await api.close()


@pytest.fixture(scope="session")
def rights(kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[Rights]:
    found = Rights(kubeconfig)
    yield found
    request.config.stash[USED_RIGHTS].note(found.used())


@pytest.fixture
async def world(kubeconfig: Path) -> AsyncIterator[World]:
    """A namespace of the test's own, and everything a test does to the cluster."""
    api = KubeClient(await load_configuration(str(kubeconfig)))
    world = World(api, f"test-{next(_numbers)}")
    await world.create_namespace()
    yield world
    await api.close()


@pytest.fixture
def operating(kubeconfig: Path, world: World, rights: Rights) -> Callable[..., Any]:
    """`with operating(**settings):` runs an operator that serves the test's namespace, with the rights that the chart
    gives it for that. A call that they don't allow fails the test, whatever the operator made of the refusal. Several
    at once need a Lease, and each an `identity`. `through` is a kubeconfig that leads to the API server another way."""

    @contextmanager
    def run(
        *, identity: str = "", through: Path | None = None, health_port: int | None = None, **changes: Any
    ) -> Iterator[OperatorThread]:
        changes.setdefault("watchNamespaces", [world.namespace])
        chosen = settings(**changes)
        granted = rights.grant(chosen)
        since = rights.mark()
        installation = Installation(chosen, KEY, ApiAddresses(("198.18.48.1", 443)))
        path = through or operators_kubeconfig(kubeconfig)
        process = OperatorThread(str(path), installation, identity, health_port)
        process.start()
        try:
            process.wait_until_ready()
            yield process
        finally:
            process.stop()
            if not chosen.watch_namespaces:
                rights.withdraw(granted)
        refused = rights.refused(since)
        assert not refused, f"the chart gives no right to: {refused}"

    return run


@pytest.fixture
def operator(operating: Callable[..., Any]) -> Iterator[None]:
    """An operator with default settings."""
    with operating():
        yield
