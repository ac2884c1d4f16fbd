"""The operator as a whole: kopf watches and runs, the reconciler does the rest.

kopf's handlers do nothing but pass objects to the caches, which put keys into the queue. Only
`on.event` handlers are used: those need no finalizers and no annotations, so that deleting a job never
waits for this operator.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from . import caches, clock, health, kopf_reader, metrics
from .kube import PAGE, ApiError, KubeClient, Resource
from .leadership import Leadership, LeaseLost
from .reconciler import Reconciler
from .settings import Installation

RECONNECT_SECONDS = 1.0
"""Before a watch that ended is taken up again. With kopf's own, 0.1, watches that each end at once cost a hundred
requests a second."""
LOGIN_SECONDS = 240
"""kopf asks for credentials again after so long: a service account's token is renewed in its file."""

RESTARTS_SINCE = (1, 34)
"""From here on an API server knows `restartPolicyRules` of a container. Without the feature ContainerRestartRules, on
by default from 1.35, it leaves them out; an older one refuses the pod."""

logger = logging.getLogger(__name__)


class _Pauses:
    """Between tries of a list or watch that failed, in seconds. kopf's own come to an end after a minute, and the
    operator with them: an API server that is away for longer would have it start again and again."""

    def __iter__(self) -> Iterator[float]:
        yield from (1, 1, 2, 3, 5, 8)
        yield from repeat(15)


class Operator:
    """One operator process. `run` returns when it is stopped and raises when it cannot go on."""

    def __init__(
        self,
        installation: Installation,
        configuration: Configuration,
        *,
        health_port: int | None = health.HEALTH_PORT,
        identity: str = "",
    ) -> None:
        """`identity` is what the Lease calls this process; by default its host's name, in a cluster the pod's."""
        self._installation = installation
        self._configuration = configuration
        self._health_port = health_port
        self._registry = kopf.OperatorRegistry()
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._api: KubeClient | None = None
        self._reconciler: Reconciler | None = None
        self._identity = identity or socket.gethostname()
        self._lease_api: KubeClient | None = None
        self._leadership: Leadership | None = None
        self._failure: BaseException | None = None
        self._stop_metrics: Callable[[], None] = lambda: None

    @property
    def ready(self) -> threading.Event:
        """Set once the caches are primed and the watches are about to start."""
        return self._ready

    def stop(self) -> None:
        """Ends `run`. May be called from any thread."""
        self._stop.set()

    async def run(self) -> None:
        kopf_reader.install(self._note_list)
        self._register()
        namespaces = self._installation.settings.watch_namespaces
        # From the first moment, and not kopf's own, which is green whatever happens.
        served = await health.serve(self._health_port, self._blindness) if self._health_port else None
        try:
            await kopf.operator(
                registry=self._registry,
                settings=self._kopf_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=self._stop,
                ready_flag=self._ready,
            )
        finally:
            # A failed start cleans nothing up.
            self._stop.set()
            if served is not None:
                await served.cleanup()
        if self._failure is not None:
            raise self._failure

    def _blindness(self) -> str:
        return self._reconciler.caches.blindness() if self._reconciler else "the operator has listed nothing yet"

    def _kopf_settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.watching.chunk_size = PAGE
        # Watching CRDs and namespaces would take rights that the operator has no other use for.
        settings.scanning.disabled = True
        settings.networking.error_backoffs = _Pauses()
        settings.watching.reconnect_backoff = RECONNECT_SECONDS
        for kind in caches.KINDS:
            selector = (kind.resource.group, kind.resource.version, kind.resource.plural)
            if kind.labels:
                settings.watching.label_selectors[selector] = kind.labels
            if kind.fields:
                settings.watching.field_selectors[selector] = kind.fields
        return settings

    def _register(self) -> None:
        kopf.on.login(registry=self._registry, id="login", errors=kopf.ErrorsMode.PERMANENT)(self._login)
        kopf.on.startup(registry=self._registry, id="startup", errors=kopf.ErrorsMode.PERMANENT)(self._start)
        kopf.on.cleanup(registry=self._registry, id="cleanup")(self._clean_up)
        for kind in caches.KINDS:
            self._watch(kind.resource)

    def _watch(self, resource: Resource) -> None:
        async def take(event: kopf.RawEvent, **_: Any) -> None:
            if self._reconciler is not None:
                self._reconciler.caches.handle(resource, event["type"], dict(event["object"]))

        kopf.on.event(resource.group, resource.version, resource.plural, registry=self._registry, id=resource.plural)(
            take
        )

    def _note_list(self, kind: str) -> None:
        if self._reconciler is not None:
            self._reconciler.caches.note_list(kind)

    async def _login(self, **_: Any) -> kopf.ConnectionInfo:
        configuration = self._configuration
        header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        scheme, _, token = (header or "").strip().partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme.capitalize() or None if token else None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            expiration=clock.now() + timedelta(seconds=LOGIN_SECONDS) if token else None,
        )

    async def _start(self, **_: Any) -> None:
        self._api = KubeClient(self._configuration, self._may_write())
        installation = await self._with_restarts(await self._with_api_address(self._api), self._api)
        self._reconciler = Reconciler(installation, self._api, now=self._api.clock.now)
        await self._reconciler.caches.prime(self._api)
        port = self._installation.settings.metrics_port
        if port is not None:
            self._stop_metrics = metrics.serve(port)
        self._tasks = [
            # Of an operator that waits for its turn too.
            asyncio.create_task(self._reconciler.caches.keep_verified(self._api), name="cache verification"),
            asyncio.create_task(self._act(self._reconciler, self._api), name="reconciler"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        logger.info("The operator is ready")

    def _may_write(self) -> Callable[[], bool]:
        """Whether this process may change anything, as the Lease says; without one it always may."""
        lease = self._installation.settings.lease
        if lease is None:
            return metrics.OPERATOR.leads(lambda: True)
        # Connections of its own: renewals do not queue behind anything else, and are not gated by themselves.
        self._lease_api = KubeClient(self._configuration)
        self._leadership = Leadership(self._lease_api, lease, self._identity)
        return metrics.OPERATOR.leads(self._leadership.holds)

    async def _act(self, reconciler: Reconciler, api: KubeClient) -> None:
        """Decides and acts while it may. An operator that waits for its turn keeps its caches filled."""
        if self._leadership is None:
            await reconciler.run()
            return
        while True:
            await self._leadership.acquire()
            logger.info("This operator holds the Lease, and acts")
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._leadership.keep(), name="lease")
                    tasks.create_task(_act_on_what_is(reconciler, api), name="acting")
            except* LeaseLost:
                logger.warning("This operator has lost the Lease, and waits")

    async def _with_api_address(self, api: KubeClient) -> Installation:
        """For the gate of every host. It does without where the API server does not tell."""
        try:
            addresses = replace(self._installation.api, server=await api.own_address())
        except ApiError as error:
            logger.warning("The API server's own address is not known: %s", error)
            return self._installation
        return replace(self._installation, api=addresses)

    async def _with_restarts(self, installation: Installation, api: KubeClient) -> Installation:
        """Where the API server is too old, or does not say, a lost evaluator is followed by another attempt."""
        try:
            return replace(installation, restarts=await api.release() >= RESTARTS_SINCE)
        except ApiError as error:
            logger.warning("The API server's version is not known: %s", error)
            return installation

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without the reconciler the process is of no use: it ends, and is started again."""
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._stop.set()

    async def _clean_up(self, **_: Any) -> None:
        # kopf waits for the flag in a thread, and neither it nor the loop ends before that thread does.
        self._stop.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
        self._stop_metrics()
        if self._leadership is not None:
            await self._leadership.release()
        for api in (self._api, self._lease_api):
            if api is not None:
                await api.close()


async def _act_on_what_is(reconciler: Reconciler, api: KubeClient) -> None:
    """From lists, not from what the watches have shown so far: another operator has acted until just now."""
    await reconciler.caches.prime(api)
    await reconciler.run()
