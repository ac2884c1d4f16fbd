"""The evaluator's Service and the policies that fence a job's pods."""

from __future__ import annotations

from typing import Any

from ..api.constants import Placement, Role
from ..api.wire.endpoints import CANARY_PORT, EVALUATOR_PORT, HOST_PORT
from . import names
from .workload import Workload

Manifest = dict[str, Any]

_NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


def evaluator_service(workload: Workload, cluster_ip: str | None = None) -> Manifest:
    """The one address that hosts know. Not-ready addresses are published: a host asks for the
    environment while the evaluator waits for it. `cluster_ip` asks for an address again that running
    hosts hold in their plan. The canary is served beside the API so that the gate can prove the
    host's egress policy at an address that is known to answer."""
    spec: Manifest = {
        "type": "ClusterIP",
        "publishNotReadyAddresses": True,
        "selector": names.selector(workload.uid, Role.EVALUATOR),
        "ports": [
            {"name": "api", "port": EVALUATOR_PORT, "targetPort": EVALUATOR_PORT, "protocol": "TCP"},
            {"name": "canary", "port": CANARY_PORT, "targetPort": CANARY_PORT, "protocol": "TCP"},
        ],
    }
    if cluster_ip:
        spec["clusterIP"] = cluster_ip
    name = names.service_name(workload.name)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": workload.metadata(name, Role.EVALUATOR),
        "spec": spec,
    }


def network_policies(workload: Workload) -> list[Manifest]:
    """Policies of all the job's pods. They come before the pods: an open connection survives a later one."""
    if workload.placement is Placement.COLOCATED:
        return [_policy(workload, Role.COLOCATED, _evaluator_rules(workload, hosts=False))]
    return [
        _policy(workload, Role.GYM_HOST, _host_rules(workload)),
        _policy(workload, Role.EVALUATOR, _evaluator_rules(workload, hosts=True)),
    ]


def _policy(workload: Workload, role: Role, rules: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": workload.metadata(names.policy_name(workload.name, role), role),
        "spec": {"podSelector": {"matchLabels": names.selector(workload.uid, role)}, **rules},
    }


def _host_rules(workload: Workload) -> Manifest:
    evaluator = _own_pods(workload, Role.EVALUATOR)
    return {
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [evaluator], "ports": tcp_ports(HOST_PORT)}],
        "egress": [{"to": [evaluator], "ports": tcp_ports(EVALUATOR_PORT)}],
    }


def _evaluator_rules(workload: Workload, *, hosts: bool) -> Manifest:
    ingress, egress = [], []
    if hosts:
        host = _own_pods(workload, Role.GYM_HOST)
        # Open towards the canary, so that only the host's egress policy can refuse it.
        ingress.append({"from": [host], "ports": tcp_ports(EVALUATOR_PORT, CANARY_PORT)})
        egress.append({"to": [host], "ports": tcp_ports(HOST_PORT)})
    operator = workload.options.operator_pod_selector
    if operator:
        peer = {
            "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME_LABEL: operator.namespace}},
            "podSelector": {"matchLabels": operator.labels},
        }
        ingress.append({"from": [peer], "ports": tcp_ports(EVALUATOR_PORT)})
    rules: Manifest = {"policyTypes": ["Ingress"], "ingress": ingress}
    if workload.options.evaluator_egress:
        rules["policyTypes"] = ["Ingress", "Egress"]
        rules["egress"] = egress + workload.options.evaluator_egress
    return rules


def _own_pods(workload: Workload, role: Role) -> Manifest:
    return {"podSelector": {"matchLabels": names.selector(workload.uid, role)}}


def tcp_ports(*ports: int) -> list[Manifest]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
