"""The Kubernetes API in plain dicts.

`kubernetes.aio` supplies configuration, authentication and connections; its typed models cost memory
and time that a controller with thousands of objects has better uses for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client, config

from ..api import deep_json
from ..api.constants import FIELD_MANAGER, FILESET_KIND, FILESET_PLURAL, GROUP, JOB_KIND, JOB_PLURAL, VERSION
from .clock import ServerClock
from .trimming import trimmed

Manifest = dict[str, Any]

REQUEST_TIMEOUT_SECONDS = 30.0
PAGE = 100
"""Objects that a list is read by at a time."""
_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class Resource:
    """One kind of object as the API server addresses it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def prefix(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


JOBS = Resource(GROUP, VERSION, JOB_PLURAL, JOB_KIND)
FILESETS = Resource(GROUP, VERSION, FILESET_PLURAL, FILESET_KIND)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
SECRETS = Resource("", "v1", "secrets", "Secret")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)

POD_EVENT_FIELDS = "involvedObject.kind=Pod,type=Warning"
"""Of all events only these are watched: what the kubelet and the scheduler complain about."""

_BY_KIND = {
    resource.kind: resource
    for resource in (JOBS, FILESETS, PODS, SERVICES, SECRETS, CLAIMS, CONFIG_MAPS, EVENTS, POLICIES, LEASES)
}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    return _BY_KIND[manifest["kind"]]


class ApiError(Exception):
    """An answer of the API server that is not a success; `message` is the server's own."""

    def __init__(
        self, status: int, reason: str, message: str, causes: tuple[str, ...] = (), fields: tuple[str, ...] = ()
    ) -> None:
        """`fields` are paths in the object that was sent, such as `status.conditions[0].type`."""
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.fields = fields

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        return self.status == 409 and not self.already_exists

    @property
    def forbidden(self) -> bool:
        return self.status == 403

    @property
    def invalid(self) -> bool:
        """The object is not what its definition asks for: sent again, it is refused again."""
        return self.status == 422

    @property
    def namespace_ends(self) -> bool:
        """The namespace is being deleted and takes nothing new."""
        return self.forbidden and "NamespaceTerminating" in self.causes

    @property
    def may_pass(self) -> bool:
        """No connection, throttled, or a failure of the server's own: worth another try. So is 404 to a
        list, whose CRD may be about to be served, and 410 to a page of one that came too late."""
        return self.status in (0, 404, 408, 410, 429) or self.status >= 500


async def load_configuration(kubeconfig: str | None = None) -> client.Configuration:
    """The service account's configuration in a pod, else that of `kubeconfig` or the default file."""
    configuration = client.Configuration()
    if kubeconfig is None:
        try:
            config.load_incluster_config(client_configuration=configuration)
            return configuration
        except config.ConfigException:
            pass
    await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return configuration


class KubeClient:
    """Requests to one API server. Every call either returns the server's object or raises `ApiError`."""

    def __init__(self, configuration: client.Configuration, may_write: Callable[[], bool] = lambda: True) -> None:
        """`may_write` is asked before each request that changes something."""
        self._configuration = configuration
        self._may_write = may_write
        self.clock = ServerClock()
        self._client = client.ApiClient(configuration)

    async def close(self) -> None:
        await self._client.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest:
        return await self._request("GET", self._path(resource, namespace, name))

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> Manifest:
        """A consistent list: without a resource version the server answers no older than now. It comes in pages, which
        are all of one moment: an object may have more than a MiB."""
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(PAGE)}
        path, accept = self._path(resource, namespace), _METADATA if metadata_only else _JSON
        answer = await self._request("GET", path, query=query, accept=accept)
        while token := answer["metadata"].get("continue"):
            page = await self._request("GET", path, query=query | {"continue": token}, accept=accept)
            answer = page | {"items": answer["items"] + page["items"]}
        return answer

    async def create(self, manifest: Manifest) -> Manifest:
        resource = resource_of(manifest)
        path = self._path(resource, manifest["metadata"]["namespace"])
        return await self._request("POST", path, body=manifest, query={"fieldManager": FIELD_MANAGER})

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply; fields that another manager changed become ours again."""
        metadata = manifest["metadata"]
        path = self._path(resource_of(manifest), metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, body=manifest, query=query, content_type=_APPLY_PATCH)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Raises a conflict if what is stored is not of the manifest's resource version any more."""
        metadata = manifest["metadata"]
        path = self._path(resource_of(manifest), metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, body=manifest, query={"fieldManager": FIELD_MANAGER})

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Deletes that very object: one that was made anew under the same name is left alone, and with
        `resource_version` one that has changed since."""
        body: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {}),
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._request("DELETE", self._path(resource, namespace, name), body=body)

    async def patch_status(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest:
        path = f"{self._path(resource, namespace, name)}/status"
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, body=patch, query=query, content_type=_MERGE_PATCH)

    async def release(self) -> tuple[int, int]:
        """The API server's version, as (1, 35), from `GET /version`; some clusters call a minor one `35+`."""
        answer = await self._request("GET", "/version")
        try:
            return int(answer["major"]), int(answer["minor"].rstrip("+"))
        except (KeyError, ValueError):
            return 0, 0

    async def own_address(self) -> tuple[str, int] | None:
        """Where the API server says that it is reached (`serverAddressByClientCIDRs` of `GET /api`), which is an
        address of a node where the Service is none. None if it names no IP address."""
        answer = await self._request("GET", "/api")
        for entry in answer.get("serverAddressByClientCIDRs") or ():
            host, _, port = entry.get("serverAddress", "").rpartition(":")
            try:
                return str(ip_address(host.strip("[]"))), int(port)
            except ValueError:
                continue
        return None

    def _path(self, resource: Resource, namespace: str | None, name: str = "") -> str:
        parts = [resource.prefix]
        if resource.namespaced and namespace:
            parts += ["namespaces", _segment(namespace)]
        parts.append(resource.plural)
        if name:
            parts.append(_segment(name))
        return "/".join(parts)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Manifest:
        if method != "GET" and not self._may_write():
            raise ApiError(0, "NotLeading", f"{method} {path}: this operator does not hold the Lease")
        headers = {"Accept": accept, "Content-Type": content_type}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        parameters = urlencode({key: value for key, value in (query or {}).items() if value})
        url = f"{self._configuration.host}{path}" + (f"?{parameters}" if parameters else "")
        try:
            response = await self._client.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=_TIMEOUT
            )
            self.clock.heard(response.headers.get("Date"))
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error or type(error).__name__}") from error
        if response.status >= 300:
            raise _error(response.status, data)
        return deep_json.loads(data, trimmed)


async def find(api: KubeClient, resource: Resource, namespace: str | None, name: str) -> Manifest | None:
    """The object; None if there is none of that name."""
    try:
        return await api.get(resource, namespace, name)
    except ApiError as error:
        if error.not_found:
            return None
        raise


def _segment(name: str) -> str:
    """A name as one part of a path. What would be more than one is no object's name (client-go's
    `IsValidPathSegmentName`): with the operator's rights, it would lead a job into another namespace."""
    if name in (".", "..") or "/" in name or "%" in name:
        raise ApiError(404, "NotFound", f"{name!r} is no object's name")
    return quote(name, safe="")


_TIMEOUT = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)


def _error(status: int, data: bytes) -> ApiError:
    try:
        answer = deep_json.loads(data)
        causes = (answer.get("details") or {}).get("causes") or ()
        return ApiError(
            status,
            answer.get("reason") or "",
            answer.get("message") or "",
            tuple(cause.get("reason", "") for cause in causes),
            tuple(cause.get("field", "") for cause in causes),
        )
    except (ValueError, AttributeError):
        return ApiError(status, "", data.decode(errors="replace")[:500])
