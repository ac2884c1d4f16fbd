"""The canaries of a measurement: a listener, and a client that is fenced in like a gym host. Pure builders."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from ..api import pod_rules
from ..api.constants import (
    CANARY_LABEL,
    CONTAINER_LISTEN,
    CONTAINER_REACH,
    CONTAINER_REFUSED,
    ROLE_LABEL,
    SUBJECT_ANNOTATION,
    Role,
)
from ..api.wire.endpoints import CANARY_PORT, EVALUATOR_PORT
from ..api.wire.plans import CANARY_PLAN_ENV, CanaryPlan
from . import network, plans, podspec
from .options import WorkloadOptions
from .pods import HOST_MODULE, NO_DNS
from .workload import ApiAddresses

Manifest = dict[str, Any]

GRACE_SECONDS = 5
MEASURE_SECONDS = 60.0
"""For each of the client's two halves, as a host's gate has: policies take hold within a second, a node may be busy."""


@dataclass(frozen=True)
class Turn:
    """Which node a measurement should take place on. A wish, since a node may be full, or closed to these pods."""

    first: tuple[str, ...] = ()
    """Where something was seen to fail."""
    known: tuple[str, ...] = ()
    """Where it was measured, the last one first: all others come before these, and of these the one that was measured
    longest ago."""

    def preferences(self) -> list[Manifest]:
        """Of a node affinity. The scheduler adds the weights of all that a node meets."""
        wishes = [(100, [_node("In", name)]) for name in self.first]
        wishes += [(40, [_node("NotIn", name) for name in self.known])] if self.known else []
        newer = self.known[:-1]
        wishes += [(20, [_node("NotIn", name) for name in newer])] if newer else []
        return [{"weight": weight, "preference": {"matchFields": fields}} for weight, fields in wishes]


def _node(operator: str, name: str) -> Manifest:
    """By the node's own name: the API takes one value for that field."""
    return {"key": "metadata.name", "operator": operator, "values": [name]}


@dataclass(frozen=True)
class Canary:
    """What a measurement is about, and where it takes place."""

    name: str
    """The ConfigMap that takes the outcome, and the stem of every other name."""
    namespace: str
    options: WorkloadOptions
    runtime_class_name: str | None
    """None measures the cluster's default runtime: only the network then."""
    api: ApiAddresses
    start_seconds: float
    """How long a pod may take to start."""
    owner_uid: str = ""
    """The ConfigMap's: with it, everything else goes."""
    turn: Turn = field(default_factory=Turn)

    @property
    def subject(self) -> str:
        """A digest of what the outcome depends on: with other settings it has to be measured again."""
        options = self.options
        facts = [self.runtime_class_name, options.images.gym_host, options.pods.model_dump(), options.resources.gate]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def pod_name(self, role: Role) -> str:
        return f"{self.name}-{'listener' if role is Role.CANARY_LISTENER else 'client'}"

    def metadata(self, name: str, role: Role) -> Manifest:
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.selector(role),
            "annotations": {SUBJECT_ANNOTATION: self.subject},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": self.name,
                    "uid": self.owner_uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        }

    def selector(self, role: Role) -> dict[str, str]:
        return {CANARY_LABEL: self.name, ROLE_LABEL: role.value}


def listener(canary: Canary) -> Manifest:
    """Under the cluster's default runtime, like an evaluator."""
    container = _container(canary, CONTAINER_LISTEN, ports=(EVALUATOR_PORT, CANARY_PORT))
    return _pod(canary, Role.CANARY_LISTENER, [], container, affinity=_affinity(canary))


def client(canary: Canary, listener_ip: str) -> Manifest:
    """Like a gym host: its RuntimeClass, its fences, no DNS. It runs beside the listener where it can, so that the
    two may be compared."""
    host = f"[{listener_ip}]" if ":" in listener_ip else listener_ip
    plan = CanaryPlan(
        evaluator_url=f"http://{host}:{EVALUATOR_PORT}",
        gate_refused=plans.gate_targets(listener_ip, "the listening canary", canary.api),
        gate_timeout_s=MEASURE_SECONDS,
        open_timeout_s=MEASURE_SECONDS,
    )
    env = [pod_rules.variable(CANARY_PLAN_ENV, plan.model_dump_json())]
    return _pod(
        canary,
        Role.CANARY_CLIENT,
        [_container(canary, CONTAINER_REACH, env=env)],
        _container(canary, CONTAINER_REFUSED, env=[*env, podspec.node_addresses()]),
        runtimeClassName=canary.runtime_class_name,
        affinity=_beside_listener(canary),
        **NO_DNS,
    )


def policies(canary: Canary, *, shut: bool) -> list[Manifest]:
    """Of both pods. The client's lets it reach the second port until it is `shut`; the listener's always does, so that
    only the client's own can refuse it. They allow what they may, for a namespace where all else is denied."""
    ports = (EVALUATOR_PORT,) if shut else (EVALUATOR_PORT, CANARY_PORT)
    return [
        _policy(canary, Role.CANARY_LISTENER, "ingress", "from", Role.CANARY_CLIENT, (EVALUATOR_PORT, CANARY_PORT)),
        _policy(canary, Role.CANARY_CLIENT, "egress", "to", Role.CANARY_LISTENER, ports),
    ]


def _policy(canary: Canary, role: Role, way: str, side: str, peer: Role, ports: tuple[int, ...]) -> Manifest:
    peers = [{"podSelector": {"matchLabels": canary.selector(peer)}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": canary.metadata(canary.pod_name(role), role),
        "spec": {
            "podSelector": {"matchLabels": canary.selector(role)},
            "policyTypes": ["Ingress", "Egress"],
            way: [{side: peers, "ports": network.tcp_ports(*ports)}],
        },
    }


def _pod(canary: Canary, role: Role, init: list[Manifest], main: Manifest, **spec: Any) -> Manifest:
    """It ends by itself, should no operator be there to end it."""
    return podspec.fenced(
        canary.options.pods,
        canary.metadata(canary.pod_name(role), role),
        initContainers=init,
        containers=[main],
        volumes=[podspec.scratch("tmp", canary.options.resources.gate)],
        terminationGracePeriodSeconds=GRACE_SECONDS,
        activeDeadlineSeconds=int(2 * canary.start_seconds + 2 * MEASURE_SECONDS),
        **spec,
    )


def _container(canary: Canary, command: str, **more: Any) -> Manifest:
    return podspec.container(
        canary.options,
        command,
        image=canary.options.images.gym_host,
        module=HOST_MODULE,
        command=command,
        resources=canary.options.resources.gate,
        mounts=[podspec.mount("tmp", "/tmp")],
        log_speaks=True,
        **more,
    )


def _affinity(canary: Canary) -> Manifest:
    """The administrator's, and whose turn it is."""
    affinity = deepcopy(canary.options.pods.affinity)
    if preferences := canary.turn.preferences():
        _wishes(affinity, "nodeAffinity").extend(preferences)
    return affinity


def _beside_listener(canary: Canary) -> Manifest:
    affinity = _affinity(canary)
    term = {
        "labelSelector": {"matchLabels": canary.selector(Role.CANARY_LISTENER)},
        "topologyKey": "kubernetes.io/hostname",
    }
    _wishes(affinity, "podAffinity").append({"weight": 100, "podAffinityTerm": term})
    return affinity


def _wishes(affinity: Manifest, kind: str) -> list[Manifest]:
    return affinity.setdefault(kind, {}).setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
