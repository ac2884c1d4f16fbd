"""What stands around a sandbox and must not hear of it: listeners that count, and a prober that shows they are up.

A refusal proves something only where a listener is known to answer. The prober is a pod without any policy that tries
the very same addresses with the very same code.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from devcluster.images.building import reference
from devcluster.settings import API_PORT, API_SERVICE_IP, DNS_SERVICE_IP, NODE_IP
from e2e import manifests
from e2e.installations import ALLOWED
from e2e.manifests import INSTANT_PORT, MODELS_NAMESPACE, SLOW_PORT
from nhx_gym_operator.api.wire.endpoints import CANARY_PORT, EVALUATOR_PORT, HOST_PORT
from support import cluster
from support.cluster import ROOT, Object

HERE = ROOT / "tests/security"
ATTACKS = HERE / "environment/resources_servers/hostile/attacks.py"
UDP_PORT = 8053
KUBELET_PORT = 10250
OUTSIDE = "198.19.77.10"
"""Of the range set aside for tests, and of none of the cluster's own: what an address of the internet is here. The
bystander's Service answers at it, so that a packet to it can arrive."""
UNROUTED = "192.0.2.1"
METADATA = "169.254.169.254"
READY_SECONDS = 60


@dataclass(frozen=True)
class Sandbox:
    """Addresses of one job's pods."""

    evaluator: str
    """Of its Service."""
    evaluator_pod: str
    host_pod: str


def deploy(namespaces: list[str]) -> None:
    """The bystander, with a Service by every kind of address; in each namespace of jobs a pod that bears the role of
    an evaluator and another job's UID; and the prober."""
    objects = [_script(MODELS_NAMESPACE), _listener(MODELS_NAMESPACE, "bystander", {}), _service(), _prober()]
    for namespace in namespaces:
        labels = {"evals.nhx.io/role": "evaluator", "evals.nhx.io/job-uid": "00000000-0000-0000-0000-000000000000"}
        objects += [_script(namespace), _listener(namespace, "lookalike", labels)]
    cluster.apply(*objects)
    for name, namespace in _listeners(namespaces):
        _wait_for_line(name, namespace, "listening")
    cluster.kubectl("wait", "pod/prober", f"--namespace={MODELS_NAMESPACE}", "--for=condition=Ready", timeout=90)


def heard(namespaces: list[str]) -> dict[str, list[str]]:
    """Every connection and datagram that each listener has had, one line each."""
    found = {}
    for name, namespace in _listeners(namespaces):
        lines = cluster.kubectl("logs", name, f"--namespace={namespace}").splitlines()
        found[f"{namespace}/{name}"] = [line for line in lines if line != "listening"]
    return found


def addresses(namespace: str, own: Sandbox, other: Sandbox) -> dict[str, Any]:
    """All that a sandbox may try to reach, by name: what the accomplice outside gives to it."""
    bystander, lookalike = _address("bystander", MODELS_NAMESPACE), _address("lookalike", namespace)
    service = cluster.get("service", "bystander", MODELS_NAMESPACE)["spec"]
    scripted = cluster.get("service", "scripted", MODELS_NAMESPACE)["spec"]["clusterIP"]
    tcp = {
        "api-server-service": [API_SERVICE_IP, 443],
        "api-server-node": [NODE_IP, API_PORT],
        "kubelet": [NODE_IP, KUBELET_PORT],
        "node-port": [NODE_IP, service["ports"][0]["nodePort"]],
        "another-pod": [bystander, HOST_PORT],
        "another-service": [service["clusterIP"], HOST_PORT],
        "lookalike-evaluator": [lookalike, EVALUATOR_PORT],
        "outside": [OUTSIDE, HOST_PORT],
        "cluster-dns": [DNS_SERVICE_IP, 53],
        "model-endpoint": [scripted, INSTANT_PORT],
        "another-jobs-evaluator": [other.evaluator, EVALUATOR_PORT],
        "another-jobs-evaluator-pod": [other.evaluator_pod, EVALUATOR_PORT],
        "another-jobs-host": [other.host_pod, HOST_PORT],
        "own-evaluators-second-port": [own.evaluator, CANARY_PORT],
        "own-evaluator": [own.evaluator, EVALUATOR_PORT],
        "metadata": [METADATA, 80],
        "unrouted": [UNROUTED, 443],
    }
    proxy = {
        "allowed": ALLOWED,
        "another-port": f"scripted.{MODELS_NAMESPACE}:{SLOW_PORT}",
        "another-host": f"bystander.{MODELS_NAMESPACE}:{HOST_PORT}",
        "its-address": f"{scripted}:{INSTANT_PORT}",
        "api-server": f"{API_SERVICE_IP}:443",
        "metadata": f"{METADATA}:80",
        "evaluator-itself": f"127.0.0.1:{EVALUATOR_PORT}",
    }
    udp = {"cluster-dns": [DNS_SERVICE_IP, 53], "another-pod": [bystander, UDP_PORT]}
    return {"tcp": tcp, "udp": udp, "proxy": proxy}


def probe(targets: dict[str, Any]) -> dict[str, Any]:
    """What the prober sees of the same addresses, TCP and UDP."""
    seen: dict[str, Any] = {}
    for name in ("reach-by-tcp", "reach-by-udp"):
        command = ["python", "/script/attacks.py", name, "-"]
        done = cluster.execute("prober", "prober", MODELS_NAMESPACE, command, stdin=json.dumps(targets))
        if done.code:
            raise AssertionError(f"the prober could not try: {done.stderr}")
        seen[name] = json.loads(done.stdout.splitlines()[-1])["saw"]
    return seen


def _listeners(namespaces: list[str]) -> list[tuple[str, str]]:
    return [("bystander", MODELS_NAMESPACE), *(("lookalike", namespace) for namespace in namespaces)]


def _address(pod: str, namespace: str) -> str:
    return cluster.get("pod", pod, namespace)["status"]["podIP"]


def _script(namespace: str) -> Object:
    files = {"listener.py": (HERE / "listener.py").read_text(), "attacks.py": ATTACKS.read_text()}
    return manifests.config_map(namespace, "attack-scripts", files)


def _listener(namespace: str, name: str, labels: dict[str, str]) -> Object:
    ports = [str(port) for port in (HOST_PORT, EVALUATOR_PORT)]
    return _pod(namespace, name, labels, ["python", "/script/listener.py", str(UDP_PORT), *ports])


def _prober() -> Object:
    return _pod(MODELS_NAMESPACE, "prober", {}, ["sleep", "3600"])


def _pod(namespace: str, name: str, labels: dict[str, str], args: list[str]) -> Object:
    container = manifests.container(name, reference("nhx-tasks"), args=args)
    container["volumeMounts"].append({"name": "script", "mountPath": "/script", "readOnly": True})
    volume = {"name": "script", "configMap": {"name": "attack-scripts"}}
    pod = manifests.restricted_pod(namespace, name, [container], [volume])
    pod["metadata"]["labels"] |= labels
    return pod


def _service() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "bystander", "namespace": MODELS_NAMESPACE},
        "spec": {
            "type": "NodePort",
            "selector": {"app": "bystander"},
            "externalIPs": [OUTSIDE],
            "ports": [{"name": "tcp", "port": HOST_PORT, "targetPort": HOST_PORT}],
        },
    }


def _wait_for_line(pod: str, namespace: str, line: str) -> None:
    cluster.kubectl(
        "wait", f"pod/{pod}", f"--namespace={namespace}", "--for=condition=Ready", timeout=READY_SECONDS + 30
    )
    deadline = time.monotonic() + READY_SECONDS
    while line not in cluster.kubectl("logs", pod, f"--namespace={namespace}"):
        if time.monotonic() > deadline:
            raise AssertionError(f"pod {namespace}/{pod} does not say {line!r}")
        time.sleep(0.5)
