"""The cluster's own objects: runtime and storage classes, cluster DNS, and what the node's programs may read."""

from . import kubectl, report
from .settings import DNS_PORT, DNS_SERVICE_IP, NODE_IP, NODE_NAME, PROVISIONER


def objects() -> list[dict]:
    return [
        _object("node.k8s.io/v1", "RuntimeClass", "gvisor", handler="runsc"),
        _storage_class(),
        *_dns(),
        *_may("kube-router", READ_FOR_POLICIES),
        *_may("coredns", READ_FOR_DNS),
        *_may("volumes", READ_FOR_VOLUMES),
        _binding("volumes", "system:persistent-volume-provisioner", suffix=":volumes"),
    ]


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


READ = ["get", "list", "watch"]
READ_FOR_POLICIES = [
    _rule("", ["pods", "namespaces", "nodes", "services", "endpoints"], READ),
    _rule("networking.k8s.io", ["networkpolicies"], READ),
    _rule("discovery.k8s.io", ["endpointslices"], READ),
]
READ_FOR_DNS = [
    _rule("", ["pods", "namespaces", "services", "endpoints"], READ),
    _rule("discovery.k8s.io", ["endpointslices"], READ),
]


READ_FOR_VOLUMES = [_rule("", ["nodes"], READ)]


def _object(version: str, kind: str, name: str, namespace: str = "", **rest) -> dict:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata |= rest.pop("metadata", {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _role(name: str, rules: list[dict]) -> dict:
    return _object("rbac.authorization.k8s.io/v1", "ClusterRole", f"devcluster:{name}", rules=rules)


def _binding(user: str, role: str, suffix: str = "") -> dict:
    group = "rbac.authorization.k8s.io"
    subject = {"apiGroup": group, "kind": "User", "name": f"devcluster:{user}"}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": role}
    name = f"devcluster:{user}{suffix}"
    return _object(f"{group}/v1", "ClusterRoleBinding", name, subjects=[subject], roleRef=reference)


def _may(user: str, rules: list[dict]) -> list[dict]:
    return [_role(user, rules), _binding(user, f"devcluster:{user}")]


def _storage_class() -> dict:
    return _object(
        "storage.k8s.io/v1",
        "StorageClass",
        "local",
        metadata={"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        provisioner=PROVISIONER,
        reclaimPolicy="Delete",
        volumeBindingMode="WaitForFirstConsumer",
    )


def _dns() -> list[dict]:
    """A Service without a selector, since what answers is a process of the node and no pod."""
    ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    service_ports = [
        {"name": name, "protocol": protocol, "port": 53, "targetPort": DNS_PORT} for name, protocol in ports
    ]
    slice_ports = [{"name": name, "protocol": protocol, "port": DNS_PORT} for name, protocol in ports]
    return [
        _object("v1", "Service", "kube-dns", "kube-system", spec={"clusterIP": DNS_SERVICE_IP, "ports": service_ports}),
        _object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            "kube-dns-node",
            "kube-system",
            metadata={"labels": {"kubernetes.io/service-name": "kube-dns"}},
            addressType="IPv4",
            ports=slice_ports,
            endpoints=[{"addresses": [NODE_IP], "conditions": {"ready": True}}],
        ),
    ]


def apply() -> None:
    kubectl.apply(objects())


def node_is_registered() -> bool:
    return kubectl.get("node", NODE_NAME) is not None


def node_is_ready() -> bool:
    node = kubectl.get("node", NODE_NAME)
    if not node or node["spec"].get("taints"):
        return False
    return any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions", []))


def pods_can_start() -> bool:
    """A pod is refused until its namespace has its service account."""
    return kubectl.get("serviceaccount", "default", "--namespace=default") is not None


def wait_until_ready(log) -> None:
    report.wait_until("the node to be Ready", node_is_ready, 90, log)
    report.wait_until("the default service account", pods_can_start, 60)
