"""What a test does to the cluster: as the user, as the kubelet, as somebody with kubectl and bad luck."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.api.wire.reports import Outcome
from nhx_gym_operator.controller.kube import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    FILESETS,
    JOBS,
    PODS,
    POLICIES,
    SECRETS,
    SERVICES,
    ApiError,
    KubeClient,
    Resource,
)
from support.controller_values import spec

Object = dict[str, Any]

WAIT_SECONDS = 60.0
"""What a status has to say it says within this."""
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
CHILDREN = (PODS, SERVICES, POLICIES, CLAIMS, SECRETS)


class World:
    """One namespace. Waiting fails with what was there instead."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    # As the user

    async def create_namespace(self) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        await self._post(NAMESPACES, {"metadata": {"name": self.namespace, "labels": labels}})

    async def delete_namespace(self) -> None:
        await self._delete(NAMESPACES, self.namespace, namespaced=False)

    async def create_definition(self, definition: Object) -> None:
        await self._post(DEFINITIONS, definition)
        name = definition["metadata"]["name"]

        async def established() -> bool:
            live = await self.api.get(DEFINITIONS, None, name)
            conditions = live.get("status", {}).get("conditions") or ()
            return any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions)

        await self.until(established, f"CRD {name} is served")

    async def replace_in_definition(self, name: str, path: str, value: Any) -> None:
        """Replaces what stands at a JSON pointer, and returns when that is what the API server goes by."""
        body: Any = [{"op": "replace", "path": path, "value": value}]
        url = self.api._path(DEFINITIONS, None, name)
        await self.api._request("PATCH", url, body=body, content_type="application/json-patch+json")
        # The schema is taken up in the background, and nothing says when.
        await asyncio.sleep(3)

    async def create_runtime_class(self, name: str) -> None:
        await self._post(RUNTIME_CLASSES, {"metadata": {"name": name}, "handler": "runsc"})

    async def apply_job(self, name: str = "mcqa", metadata: Object | None = None, **changes: Any) -> Object:
        body = {"metadata": {"name": name, **(metadata or {})}, "spec": spec(**changes)}
        return await self._post(JOBS, body)

    async def create_job(self, manifest: Object) -> Object:
        return await self._post(JOBS if manifest["kind"] == "AgentEvalJob" else FILESETS, manifest)

    async def create_config_map(self, name: str, **data: str) -> None:
        await self._post(CONFIG_MAPS, {"metadata": {"name": name}, "data": data})

    async def create_file_set(self, name: str, config_map: str = "", source: Object | None = None, **spec: Any) -> None:
        """Of a ConfigMap, or of another source."""
        body = {"metadata": {"name": name}, "spec": {"source": source or {"configMap": {"name": config_map}}, **spec}}
        await self._post(FILESETS, body)

    async def create_claim(self, name: str) -> None:
        body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
        await self._post(CLAIMS, {"metadata": {"name": name}, "spec": body})

    async def create_service(self, name: str) -> Object:
        return await self._post(SERVICES, {"metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}})

    async def limit_pods(self, pods: int) -> None:
        """Sets the namespace's quota and waits until it is counted."""
        name = "pods"
        body = {"metadata": {"name": name}, "spec": {"hard": {"pods": str(pods)}}}
        try:
            await self._post(QUOTAS, body)
        except ApiError as error:
            if not error.already_exists:
                raise
            await self._patch(QUOTAS, name, {"spec": body["spec"]})

        async def counted() -> bool:
            live = await self.api.get(QUOTAS, self.namespace, name)
            status = live.get("status", {})
            return status.get("hard", {}).get("pods") == str(pods) and "used" in status

        await self.until(counted, "the quota is counted")

    async def delete_job(self, name: str = "mcqa", propagation: str = "Background") -> None:
        await self._delete(JOBS, name, propagation=propagation)

    async def annotate(self, resource: Resource, name: str, value: str) -> None:
        await self._patch(resource, name, {"metadata": {"annotations": {"touched": value}}})

    async def set_finalizers(self, name: str, finalizers: list[str]) -> None:
        await self._patch(JOBS, name, {"metadata": {"finalizers": finalizers}})

    async def remove(self, resource: Resource, name: str) -> None:
        """`kubectl delete` of one child."""
        await self._delete(resource, name)

    async def kill(self, pod: str) -> None:
        """Without any grace, as a kubelet does when its containers have ended."""
        path = self.api._path(PODS, self.namespace, pod)
        await self.api._request("DELETE", path, body={"gracePeriodSeconds": 0})

    async def evict(self, pod: str) -> None:
        """`kubectl drain` of its node, as far as it concerns this pod."""
        path = f"{self.api._path(PODS, self.namespace, pod)}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        await self.api._request("POST", path, body=body)

    @contextlib.asynccontextmanager
    async def reporting_node(self, name: str) -> AsyncIterator[None]:
        """One that reports every second."""

        async def report() -> None:
            while True:
                await asyncio.sleep(1)
                await self._report_ready(name)

        await self.create_node(name)
        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()
            await self.delete_node(name)

    async def create_node(self, name: str) -> None:
        """One that was there a moment ago. Nobody speaks for it."""
        await self._post(NODES, {"metadata": {"name": name}})
        await self._report_ready(name)

    async def _report_ready(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting it",
        }
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        await self.api.patch_status(NODES, "", name, {"status": {"conditions": [ready | times]}})

    async def delete_node(self, name: str) -> None:
        await self._delete(NODES, name, namespaced=False)

    # As the scheduler

    async def bind(self, pod: str, node: str = "nowhere") -> None:
        """To a node that nobody is. Such a pod is given its grace period, where an unbound one goes at once."""
        path = f"{self.api._path(PODS, self.namespace, pod)}/binding"
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"name": node}}
        await self.api._request("POST", path, body=body)

    # As the kubelet

    async def report(self, pod: str, states: dict[str, Object], phase: str = "Running", **status: Any) -> None:
        """Sets a pod's status: `states` maps container names to their state."""
        live = await self.api.get(PODS, self.namespace, pod)
        init = {container["name"] for container in live["spec"].get("initContainers", ())}
        shown: dict[str, list[Object]] = {"initContainerStatuses": [], "containerStatuses": []}
        for name, state in states.items():
            entry = {
                "name": name,
                "state": state,
                "image": "x",
                "imageID": f"x@sha256:{'0' * 64}",
                "ready": False,
                "restartCount": 0,
            }
            shown["initContainerStatuses" if name in init else "containerStatuses"].append(entry)
        await self.api.patch_status(PODS, self.namespace, pod, {"status": {"phase": phase, **shown, **status}})

    async def complain(self, pod: Object, reason: str, message: str) -> None:
        """A warning about a pod, as an event."""
        metadata, at = pod["metadata"], "2026-11-29T12:00:00Z"
        of = {"kind": "Pod", "namespace": self.namespace, "name": metadata["name"], "uid": metadata["uid"]}
        body = {"type": "Warning", "reason": reason, "message": message, "firstTimestamp": at, "lastTimestamp": at}
        await self._post(
            EVENTS, {"metadata": {"name": f"{metadata['name']}.{reason.lower()}"}, "involvedObject": of, **body}
        )

    async def report_running(self, pod: str = "mcqa-evaluator-1", ip: str | None = None) -> None:
        states = {"agent-evaluate": {"running": {"startedAt": "2026-11-29T12:00:00Z"}}}
        addresses = {"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}
        await self.report(pod, states, **addresses)

    async def report_working(self, pod: str, container: str, ip: str) -> None:
        """Its one container runs and is ready, and so is the pod."""
        at = "2026-11-29T12:00:00Z"
        state = {"name": container, "state": {"running": {"startedAt": at}}, "ready": True, "restartCount": 0}
        of_image = {"image": "x", "imageID": f"x@sha256:{'0' * 64}"}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
        status = {"phase": "Running", "containerStatuses": [state | of_image], "conditions": [ready]}
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
        await self.api.patch_status(PODS, self.namespace, pod, {"status": status})

    async def report_staged(
        self, container: str, message: str, *, code: int = 0, at: str = "2026-11-29T12:00:30Z"
    ) -> None:
        """A stage container ends with these words."""
        ended = {"exitCode": code, "message": message, "startedAt": "2026-11-29T12:00:00Z", "finishedAt": at}
        await self.report("mcqa-evaluator-1", {container: {"terminated": ended}}, "Pending")

    async def report_outcome(self, outcome: Outcome, pod: str = "mcqa-evaluator-1") -> None:
        """The evaluator ends with this outcome."""
        good = outcome.state == "Complete"
        ended = {
            "exitCode": 0 if good else 1,
            "message": encode_outcome(outcome).decode(),
            "startedAt": "2026-11-29T12:00:00Z",
            "finishedAt": "2026-11-29T12:01:00Z",
        }
        await self.report(pod, {"agent-evaluate": {"terminated": ended}}, "Succeeded" if good else "Failed")

    # Looking

    async def job(self, name: str = "mcqa") -> Object:
        return await self.api.get(JOBS, self.namespace, name)

    async def uid(self, resource: Resource, name: str) -> str | None:
        """None where there is no such object: one look, since it may go or come between two."""
        try:
            return (await self.api.get(resource, self.namespace, name))["metadata"]["uid"]
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def exists(self, resource: Resource, name: str) -> bool:
        return await self.uid(resource, name) is not None

    async def children(self) -> dict[str, Object]:
        """Everything that the operator made here, by kind and name."""
        found = {}
        for resource in CHILDREN:
            answer = await self.api.list(
                resource, self.namespace, labels="app.kubernetes.io/managed-by=nhx-gym-operator"
            )
            found |= {f"{resource.kind}/{item['metadata']['name']}": item for item in answer["items"]}
        return found

    async def names(self, resource: Resource) -> list[str]:
        answer = await self.api.list(resource, self.namespace)
        return sorted(item["metadata"]["name"] for item in answer["items"])

    async def events(self, name: str = "mcqa") -> list[Object]:
        fields = f"involvedObject.kind=AgentEvalJob,involvedObject.name={name}"
        return (await self.api.list(EVENTS, self.namespace, fields=fields))["items"]

    # Waiting

    async def until_condition(self, kind: str, reason: str, name: str = "mcqa", status: str | None = None) -> Object:
        """The job, once its condition has this reason."""

        async def there() -> Object | None:
            job = await self.job(name)
            entry = condition(job, kind)
            matches = entry and entry["reason"] == reason and status in (None, entry["status"])
            return job if matches else None

        return await self.until(there, f"{kind} has reason {reason}", lambda: self.job(name))

    async def until_phase(self, phase: str, name: str = "mcqa") -> Object:
        async def there() -> Object | None:
            job = await self.job(name)
            return job if job.get("status", {}).get("phase") == phase else None

        return await self.until(there, f"the phase is {phase}", lambda: self.job(name))

    async def until_pods(self, *names: str) -> None:
        async def there() -> bool:
            return set(names) <= set(await self.names(PODS))

        await self.until(there, f"pods {names} exist", lambda: self.names(PODS))

    async def until_pods_gone(self, *names: str, seconds: float = WAIT_SECONDS) -> None:
        async def gone() -> bool:
            return not set(names) & set(await self.names(PODS))

        await self.until(gone, f"pods {names} are gone", lambda: self.names(PODS), seconds)

    async def until_no_pods(self) -> None:
        async def none() -> bool:
            return not await self.names(PODS)

        await self.until(none, "no pod is left", lambda: self.names(PODS))

    async def until(
        self,
        there: Callable[[], Awaitable[Any]],
        what: str,
        instead: Callable[[], Awaitable[Any]] | None = None,
        seconds: float = WAIT_SECONDS,
    ) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = await there()
            if found:
                return found
            await asyncio.sleep(0.1)
        seen = await instead() if instead else ""
        raise AssertionError(f"not within {seconds:g} s: {what}; there is {seen}")

    # Requests

    async def _post(self, resource: Resource, body: Object) -> Object:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        if resource.namespaced:
            body["metadata"] = {**body["metadata"], "namespace": self.namespace}
        path = self.api._path(resource, self.namespace if resource.namespaced else None)
        return await self.api._request("POST", path, body=body, query={"fieldValidation": "Strict"})

    async def _patch(self, resource: Resource, name: str, patch: Object) -> None:
        path = self.api._path(resource, self.namespace, name)
        await self.api._request("PATCH", path, body=patch, content_type="application/merge-patch+json")

    async def _delete(
        self, resource: Resource, name: str, *, propagation: str = "Background", namespaced: bool = True
    ) -> None:
        path = self.api._path(resource, self.namespace if namespaced else None, name)
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        await self.api._request("DELETE", path, body=body)


def condition(job: Object, kind: str) -> Object | None:
    return next((entry for entry in job.get("status", {}).get("conditions", ()) if entry["type"] == kind), None)


def versions(children: dict[str, Object]) -> dict[str, str]:
    return {name: child["metadata"]["resourceVersion"] for name, child in children.items()}
