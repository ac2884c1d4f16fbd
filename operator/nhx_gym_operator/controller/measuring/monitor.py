"""The measurement's adapter: reads its objects, performs its steps, keeps and tells what was found."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ...api.conditions import MeasurementReason
from ...api.constants import MEASUREMENT_LABEL, MEASUREMENT_OF_SANDBOX, Isolation
from ...workloads.canary import Canary
from .. import clock, events, metrics, podview
from ..inputs import InputReader
from ..kube import CONFIG_MAPS, EVENTS, NODES, POD_EVENT_FIELDS, PODS, ApiError, KubeClient, find
from ..observation import Apply, Create, DeletePod, PodEvent
from ..settings import CanarySettings, Installation, SandboxMode
from . import findings as found
from .findings import Findings, Standing, Verdict
from .kernels import NodeKernel
from .step import Scene, Step, names, next_step

Manifest = dict[str, Any]

BELIEVED_AGAIN = timedelta(minutes=10)
"""A measurement takes some ten seconds: one namespace can hold up the others for a sixtieth of the time."""

logger = logging.getLogger(__name__)


class Monitor:
    """Measures at start, on a schedule, and when a job has found its sandbox open. `changed` is called after each
    measurement."""

    def __init__(
        self,
        installation: Installation,
        api: KubeClient,
        inputs: InputReader,
        changed: Callable[[], None],
        *,
        now: Callable[[], datetime] = clock.now,
    ) -> None:
        self._api = api
        self._inputs = inputs
        self._changed = changed
        self._now = now
        self._settings = _wanted(installation)
        self._canary = _canary(installation, self._settings) if self._settings else None
        self._since = now()
        self._suspected: datetime | None = None
        self._suspected_nodes: tuple[str, ...] = ()
        self._believed: dict[str, datetime] = {}
        """When a namespace's word that a sandbox is open was last taken."""
        self._findings: Findings | None = None
        self._trouble = ""
        self._refused = ""
        self._wake = asyncio.Event()

    def standing(self) -> Standing | None:
        """What a job that needs a sandbox is told. None: nothing is measured here."""
        if self._settings is None or self._canary is None:
            return None
        return found.standing(
            self._findings,
            self._canary.subject,
            self._settings.interval_seconds,
            self._since,
            self._now(),
            self._trouble,
        )

    def suspect(self, namespace: str, nodes: tuple[str, ...]) -> None:
        """A job found its sandbox open, on one of these nodes: what was measured before counts no more.

        Whoever may make pods or policies of a namespace can make its jobs find that, as often as they like, while the
        jobs of all namespaces wait: so a namespace is taken at its word once in a while only. Its own job has failed,
        and the gate of each other host proves its own network."""
        now, last = self._now(), self._believed.get(namespace)
        if last is not None and now - last < BELIEVED_AGAIN:
            logger.info("A job of namespace %s found its sandbox open; so did one at %s", namespace, last)
            return
        self._believed = {of: at for of, at in self._believed.items() if now - at < BELIEVED_AGAIN} | {namespace: now}
        self._suspected_nodes = nodes
        self._since = self._suspected = now
        self._findings = None
        self._wake.set()

    async def run(self) -> None:
        if self._settings is None or self._canary is None:
            return
        while True:
            try:
                again = await self._look(self._settings, self._canary)
                self._trouble = ""
            except ApiError as error:
                self._trouble = f"{error.message or error}"
                logger.warning("Measuring the sandbox: %s", error)
                again = found.RETRY_SECONDS if error.forbidden else 5.0
            except Exception as error:
                # Jobs wait then, and are told; the operator's other work goes on.
                self._trouble = f"{type(error).__name__}: {error}"
                logger.exception("Measuring the sandbox failed")
                again = found.RETRY_SECONDS
            try:
                async with asyncio.timeout(again):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _look(self, settings: CanarySettings, canary: Canary) -> float:
        config_map = await self._config_map(settings)
        self._findings = found.unless_withdrawn(found.from_data(config_map.get("data")), self._suspected)
        self._tell()
        scene = await self._scene(settings, replace(canary, owner_uid=config_map["metadata"]["uid"]))
        step = next_step(scene, self._now())
        # Before the pods go: an operator that ends in between concludes once more, from the same pods.
        if step.findings is not None:
            await self._write(settings, config_map, step.findings)
        refused = await self._perform(step)
        # Somebody may have deleted the outcome, or mended what was in the way.
        return 0.0 if refused else min(step.again_after, found.RETRY_SECONDS)

    def _tell(self) -> None:
        if self._settings is not None and self._canary is not None:
            interval = self._settings.interval_seconds
            metrics.SANDBOX.show(found.standing_verdicts(self._findings, self._canary.subject, interval, self._now()))
            if self._findings is not None:
                metrics.SANDBOX.tried(self._findings.tried_at)

    async def _scene(self, settings: CanarySettings, canary: Canary) -> Scene:
        listener, client = [await find(self._api, PODS, canary.namespace, name) for name in names(canary)]
        node, unreadable = await self._node(client)
        waiting = [pod for pod in (listener, client) if pod is not None and not _has_begun(pod)]
        complaints = [event for pod in waiting for event in await self._complaints(pod)]
        exists = None
        if canary.runtime_class_name:
            answer = await self._inputs.runtime_class(canary.runtime_class_name)
            exists = answer if isinstance(answer, bool) else None
        refused, self._refused = self._refused, ""
        return Scene(
            canary=canary,
            interval=settings.interval_seconds,
            since=self._since,
            findings=self._findings,
            runtime_class_exists=exists,
            listener=listener,
            client=client,
            node=node,
            node_unreadable=unreadable,
            events=tuple(complaints),
            gone=await self._gone(),
            suspected=self._suspected_nodes,
            suspected_at=self._suspected,
            refused=refused,
        )

    async def _node(self, client: Manifest | None) -> tuple[NodeKernel | None, str]:
        name = client["spec"].get("nodeName") if client else None
        if not name:
            return None, ""
        try:
            info = (await self._api.get(NODES, None, name))["status"]["nodeInfo"]
        except ApiError as error:
            if error.forbidden or error.not_found:
                return None, f"the operator may not read node {name!r} (the chart's rbac.runtimeClasses)"
            raise
        return NodeKernel(info.get("bootID", ""), info.get("kernelVersion", "")), ""

    async def _complaints(self, pod: Manifest) -> tuple[PodEvent, ...]:
        """None where events may not be read: the pod itself says most of what can be wrong with it."""
        about = f"{POD_EVENT_FIELDS},involvedObject.name={podview.name(pod)}"
        try:
            answer = await self._api.list(EVENTS, pod["metadata"]["namespace"], fields=about)
        except ApiError as error:
            if error.forbidden:
                return ()
            raise
        return events.about_pods(answer["items"])

    async def _gone(self) -> frozenset[str]:
        """Of the nodes where something failed; none where nodes may not be read."""
        failing = self._findings.failing_nodes if self._findings else ()
        return frozenset([name for name in failing if await self._is_gone(name)])

    async def _is_gone(self, node: str) -> bool:
        try:
            return await find(self._api, NODES, None, node) is None
        except ApiError as error:
            if error.forbidden:
                return False
            raise

    async def _config_map(self, settings: CanarySettings) -> Manifest:
        """The chart makes it, so that Helm removes it, and with it all that it owns. One that somebody deleted is made
        again."""
        live = await find(self._api, CONFIG_MAPS, settings.namespace, settings.name)
        return live or await self._api.apply(_config_map_of(settings, {}))

    async def _perform(self, step: Step) -> bool:
        """True if the API server would not make a pod."""
        for action in step.actions:
            try:
                match action:
                    case Apply(manifest):
                        await self._api.apply(manifest)
                    case Create(manifest):
                        await self._api.create(manifest)
                    case DeletePod(namespace, name, uid):
                        await self._api.delete(PODS, namespace, name, uid=uid)
            except ApiError as error:
                if isinstance(action, DeletePod) and (error.not_found or error.conflict):
                    continue
                if isinstance(action, Create) and error.already_exists:
                    continue
                if isinstance(action, Create) and 400 <= error.status < 500 and error.status not in (408, 409, 429):
                    self._refused = error.message
                    return True
                raise
        return False

    async def _among_nodes(self, findings: Findings, interval: float) -> Findings:
        try:
            answer = await self._api.list(NODES, None, metadata_only=True)
        except ApiError as error:
            if error.forbidden:
                return found.among_unknown(
                    findings, "the operator may not list nodes (the chart's rbac.runtimeClasses)"
                )
            return found.among_unknown(findings, error.message)
        return found.among(findings, [node["metadata"]["name"] for node in answer["items"]], interval, self._now())

    async def _write(self, settings: CanarySettings, config_map: Manifest, findings: Findings) -> None:
        findings = await self._among_nodes(findings, settings.interval_seconds)
        before, self._findings = self._findings, findings
        await self._api.apply(_config_map_of(settings, findings.to_data()))
        self._tell()
        self._changed()
        if before is None or before.verdict is not findings.verdict:
            logger.info("The sandbox: %s: %s", findings.verdict, findings.message)
            await events.publish(self._api, [_event(config_map, findings)])


def _wanted(installation: Installation) -> CanarySettings | None:
    settings = installation.settings
    return settings.canary if settings.sandbox.mode is not SandboxMode.DISABLED else None


def _canary(installation: Installation, where: CanarySettings) -> Canary:
    settings = installation.settings
    is_kernel = settings.sandbox.isolation is Isolation.KERNEL
    return Canary(
        name=where.name,
        namespace=where.namespace,
        options=settings,
        runtime_class_name=settings.sandbox.runtime_class_name if is_kernel else None,
        api=installation.api,
        start_seconds=settings.timeouts.pod_start_seconds,
    )


def _config_map_of(settings: CanarySettings, data: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": settings.name,
            "namespace": settings.namespace,
            "labels": {MEASUREMENT_LABEL: MEASUREMENT_OF_SANDBOX},
        },
        "data": data,
    }


def _has_begun(pod: Manifest) -> bool:
    return any(podview.has_started(pod, status["name"]) for status in podview.statuses(pod))


def _event(config_map: Manifest, findings: Findings) -> Manifest:
    """On the ConfigMap, when the verdict changes."""
    return events.event(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": config_map["metadata"]},
        change=f"{findings.verdict}/{findings.tried_at}",
        reason=_REASONS[findings.verdict],
        message=findings.message,
        severity="Normal" if findings.verdict is Verdict.HOLDS else "Warning",
        moment=findings.tried_at,
    )


_REASONS = {
    Verdict.HOLDS: MeasurementReason.SANDBOX_HOLDS,
    Verdict.FAILS: MeasurementReason.SANDBOX_FAILS,
    Verdict.UNKNOWN: MeasurementReason.SANDBOX_NOT_KNOWN,
}
