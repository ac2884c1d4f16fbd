"""What an evaluator serves while its job runs: the gateway to the models, the hosts' side, and the job's progress."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp

from ..api.conditions import RunReason
from ..api.constants import Placement
from ..api.wire import endpoints
from ..api.wire.plans import EvaluatorPlan
from ..api.wire.reports import FailureClass
from .addresses import CheckedResolver
from .budget import Budget
from .egress import EGRESS_LOG, EgressProxy
from .errors import JobFailed
from .gateway import ModelGateway, Unusable
from .hosts import HostRegistry
from .http_api import Backends, make_app, serving
from .journal import Journal, JournalUnwritable
from .model_keys import ModelKeys
from .packing import PackedEnvironment
from .plan import Paths, Tokens
from .progress import ProgressState
from .rollout_calls import RolloutCalls

USAGE_INTERVAL_S = 5.0
"""Calls that an evaluator which dies has not noted began within this time. Of those that it was at, their number and
how long they had taken is known."""


@dataclass(frozen=True)
class Ports:
    """Where the API and its canary listen; `host` None is every address. `hosts` is where gym hosts do."""

    host: str | None = None
    api: int = endpoints.EVALUATOR_PORT
    canary: int = endpoints.CANARY_PORT
    hosts: int | None = endpoints.HOST_PORT


@dataclass(frozen=True)
class RunningServer:
    """What is there once the API listens on `port`."""

    gateway: ModelGateway
    registry: HostRegistry | None
    """Of a sandboxed job."""
    session: aiohttp.ClientSession
    """For requests to hosts: without unpacking, which makes a long answer of a short one."""
    port: int
    egress: EgressProxy | None
    """Of a job that may reach hosts besides its models."""


@dataclass(frozen=True)
class HttpServer:
    """One evaluator's API."""

    plan: EvaluatorPlan
    paths: Paths
    tokens: Tokens
    ports: Ports
    progress: ProgressState
    calls: RolloutCalls

    @contextlib.asynccontextmanager
    async def serve(
        self,
        journal: Journal,
        keys: ModelKeys,
        trusted: Mapping[str, ssl.SSLContext],
        environment: PackedEnvironment | None,
    ) -> AsyncIterator[RunningServer]:
        """Serve until the block is left. What the models count is noted in the journal with each record, and between.

        Raises `JobFailed` if a model's address is refused or its certificate not to be trusted.
        """
        async with client() as world, client(to_hosts=True) as session:
            gateway = ModelGateway(
                self.plan.models,
                keys,
                world,
                self.calls,
                budget=Budget.of(self.plan),
                trusted=trusted,
                counted=journal.usage,
            )
            try:
                await gateway.look_at_endpoints()
            except Unusable as why:
                raise JobFailed(RunReason.MODEL_UNAVAILABLE, str(why), FailureClass.MODEL) from why
            journal.measure = gateway.usage_if_lost
            registry = self._registry(session)
            egress = self._egress()
            app = make_app(Backends(self.tokens, gateway, self.progress, registry, environment, egress))
            ports = self.ports
            async with (
                _noting_usage(journal),
                serving(app, host=ports.host, port=ports.api, canary_port=ports.canary) as port,
            ):
                yield RunningServer(gateway, registry, session, port, egress)

    def _egress(self) -> EgressProxy | None:
        if self.plan.egress is None:
            return None
        return EgressProxy(self.plan.egress, self.paths.attempt(self.plan.attempt) / EGRESS_LOG)

    def _registry(self, session: aiohttp.ClientSession) -> HostRegistry | None:
        if self.plan.placement is not Placement.SANDBOXED:
            return None
        logs = self.paths.work / "host-logs"
        logs.mkdir(parents=True, exist_ok=True)
        target, tokens = self.plan.target, dict(self.tokens.hosts)
        return HostRegistry(
            tokens, target.startup_timeout_s, session, self.progress, logs, target.concurrency, port=self.ports.hosts
        )


@contextlib.asynccontextmanager
async def _noting_usage(journal: Journal) -> AsyncIterator[None]:
    async def note() -> None:
        # Whoever records a rollout next is told that nothing can be written.
        with contextlib.suppress(JournalUnwritable):
            while True:
                await asyncio.sleep(USAGE_INTERVAL_S)
                await journal.note_usage()

    task = asyncio.create_task(note())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def client(*, to_hosts: bool = False) -> aiohttp.ClientSession:
    """A session without limits, time-outs or proxies of its own: whoever uses it sets them."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, resolver=None if to_hosts else CheckedResolver(loopback=True)),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=not to_hosts,
    )
