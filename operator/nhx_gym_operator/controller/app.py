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
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from . import caches, clock, kopf_reader, metrics
from .kube import PAGE, ApiError, KubeClient, Resource
from .leadership import Leadership, LeaseLost
from .reconciler import Reconciler
from .settings import Installation

HEALTH_ENDPOINT = "http://0.0.0.0:8088/healthz"
LOGIN_SECONDS = 240
"""kopf asks for credentials again after so long: a service account's token is renewed in its file."""

logger = logging.getLogger(__name__)


class Operator:
    """One operator process. `run` returns when it is stopped and raises when it cannot go on."""

    def __init__(
        self,
        installation: Installation,
        configuration: Configuration,
        *,
        health_endpoint: str | None = HEALTH_ENDPOINT,
        identity: str = "",
    ) -> None:
        """`identity` is what the Lease calls this process; by default its host's name, in a cluster the pod's."""
        self._installation = installation
        self._configuration = configuration
        self._health_endpoint = health_endpoint
        self._registry = kopf.OperatorRegistry()
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._loop_task: asyncio.Task[None] | None = None
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
        kopf_reader.install()
        self._register()
        namespaces = self._installation.settings.watch_namespaces
        try:
            await kopf.operator(
                registry=self._registry,
                settings=self._kopf_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                liveness_endpoint=self._health_endpoint,
                stop_flag=self._stop,
                ready_flag=self._ready,
            )
        finally:
            # A failed start cleans nothing up.
            self._stop.set()
        if self._failure is not None:
            raise self._failure

    def _kopf_settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.watching.chunk_size = PAGE
        # Watching CRDs and namespaces would take rights that the operator has no other use for.
        settings.scanning.disabled = True
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
        self._reconciler = Reconciler(await self._with_api_address(self._api), self._api)
        await self._reconciler.caches.prime(self._api)
        port = self._installation.settings.metrics_port
        if port is not None:
            self._stop_metrics = metrics.serve(port)
        self._loop_task = asyncio.create_task(self._act(self._reconciler, self._api), name="reconciler")
        self._loop_task.add_done_callback(self._ended)
        logger.info("The operator is ready")

    def _may_write(self) -> Callable[[], bool]:
        """Whether this process may change anything, as the Lease says; without one it always may."""
        lease = self._installation.settings.lease
        if lease is None:
            return lambda: True
        # Connections of its own: renewals do not queue behind anything else, and are not gated by themselves.
        self._lease_api = KubeClient(self._configuration)
        self._leadership = Leadership(self._lease_api, lease, self._identity)
        return self._leadership.holds

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

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without the reconciler the process is of no use: it ends, and is started again."""
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._stop.set()

    async def _clean_up(self, **_: Any) -> None:
        # kopf waits for the flag in a thread, and neither it nor the loop ends before that thread does.
        self._stop.set()
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.wait([self._loop_task], timeout=10)
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
