"""What the tests put on the cluster besides the operator: jobs, and the model servers that they speak to."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from devcluster.images.building import reference
from support import cluster
from support.cluster import ROOT, Object
from support.s3_server import S3Server

MODELS_NAMESPACE = "nhx-e2e-models"
KEY_SECRET = "policy-key"
BUCKET_SECRET = "bucket-keys"
_BUCKET_KEYS = {"accessKeyId": "id", "secretAccessKey": "key"}
MCQA_ROWS = "resources_servers/mcqa/data/example.jsonl"
MCQA_TASKS = 5
REPEATS = 2

SCRIPT = ROOT / "tests/support/scripted_policy.py"
WORDCHECK = ROOT / "examples/wordcheck"
WORDCHECK_TASKS = 12
_WORDCHECK_GOLD = "wordcheck.jsonl"

INSTANT_PORT, SLOW_PORT, WATCHED_PORT = 8000, 8001, 8002
PATIENCE_SECONDS = 500
"""For Gym's start: the machine may be busy with anything."""
SLOW_SECONDS = 4
"""A call to the slow server takes so long that a running host can be looked at, or killed, in the middle of a run."""


def mcqa_job(namespace: str, name: str, *, port: int = INSTANT_PORT, **gym: Any) -> Object:
    """Five questions, twice each; the scripted policy is wrong on the last one. `gym` overrides `target.gym`."""
    target = {
        "agent": "simple_agent",
        "agentConfig": "responses_api_agents/simple_agent/configs/simple_agent.yaml",
        "agentRefName": "mcqa_simple_agent",
        "resourcesServer": "mcqa",
        "modelType": "vllm_model",
        "numRepeats": REPEATS,
        "concurrency": 8,
        "startupTimeoutSeconds": PATIENCE_SECONDS,
    }
    return job(namespace, name, {"bundled": MCQA_ROWS}, target | gym, scripted_model(port))


def job(namespace: str, name: str, dataset: Object, gym: Object, policy: Object) -> Object:
    return {
        "apiVersion": "evals.nhx.io/v1alpha1",
        "kind": "AgentEvalJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "tasks": {"dataset": dataset},
            "target": {"gym": gym},
            "models": [policy],
            "results": {"persistentVolumeClaim": {"size": "64Mi"}},
        },
    }


@dataclass(frozen=True)
class Example:
    """`examples/wordcheck` as it stands there, in a namespace of the tests."""

    objects: list[Object]

    def inputs(self) -> list[Object]:
        """What the job names, each before what it names itself."""
        order = ["FileSet", "ConfigMap"]
        chosen = [entry for entry in self.objects if entry["kind"] in order]
        return sorted(chosen, key=lambda entry: order.index(entry["kind"]))

    def job(self, name: str, policy: Object, *, repeats: int | None = None) -> Object:
        """With another model, patience, and perhaps fewer repeats."""
        found = deepcopy(next(entry for entry in self.objects if entry["kind"] == "AgentEvalJob"))
        found["metadata"]["name"] = name
        found["spec"]["models"] = [policy]
        found["spec"]["target"]["gym"] |= {"startupTimeoutSeconds": PATIENCE_SECONDS}
        found["spec"]["target"]["gym"] |= {"numRepeats": repeats} if repeats else {}
        return found


def wordcheck(namespace: str) -> Example:
    """Read by `kubectl kustomize`, as its users do."""
    objects = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(WORDCHECK))))
    for entry in objects:
        entry["metadata"]["namespace"] = namespace
    return Example(objects)


def scripted_model(port: int = INSTANT_PORT) -> Object:
    return _policy(f"http://scripted.{MODELS_NAMESPACE}:{port}/v1", "scripted")


def demo_model() -> Object:
    return _policy(f"http://demo-model.{MODELS_NAMESPACE}:{INSTANT_PORT}/v1", "smollm2-135m-instruct")


def key_secret(namespace: str, key: str, name: str = KEY_SECRET) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {"api-key": key},
    }


def bucket_secret(namespace: str, server: S3Server) -> Object:
    """The server's keys, stored as an editor leaves them: with a line end."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": BUCKET_SECRET, "namespace": namespace},
        "stringData": {"id": f"{server.access_key_id}\n", "key": f"{server.secret_access_key}\n"},
    }


def bucket(server: S3Server, name: str, prefix: str) -> Object:
    """`spec.results.objectStore` of that server."""
    keys = {field: {"secretKeyRef": {"name": BUCKET_SECRET, "key": key}} for field, key in _BUCKET_KEYS.items()}
    return {"endpoint": server.endpoint, "bucket": name, "prefix": prefix, "credentials": keys}


def restricted_namespace(name: str) -> Object:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def scripted_policy(wordcheck_rows: str) -> list[Object]:
    """Three servers with the same answers: instant, slow, and a slow one whose calls one test counts."""
    files = {"scripted_policy.py": SCRIPT.read_text(), _WORDCHECK_GOLD: wordcheck_rows}
    slow = ["--fault", f"*:delay={SLOW_SECONDS}"]
    containers = [
        _scripted_container("instant", INSTANT_PORT, []),
        _scripted_container("slow", SLOW_PORT, slow),
        _scripted_container("watched", WATCHED_PORT, slow),
    ]
    pod = restricted_pod(
        MODELS_NAMESPACE, "scripted", containers, [{"name": "script", "configMap": {"name": "scripted"}}]
    )
    pod["spec"]["restartPolicy"] = "Always"
    return [
        config_map(MODELS_NAMESPACE, "scripted", files),
        pod,
        _service("scripted", INSTANT_PORT, SLOW_PORT, WATCHED_PORT),
    ]


def demo_model_server() -> list[Object]:
    server = container("demo-model", reference("demo-model"), memory="1Gi")
    server["env"] = [key_variable("DEMO_MODEL_API_KEY")]
    server["readinessProbe"] = {"httpGet": {"path": "/health", "port": INSTANT_PORT}, "periodSeconds": 1}
    pod = restricted_pod(MODELS_NAMESPACE, "demo-model", [server])
    pod["spec"]["restartPolicy"] = "Always"
    return [pod, _service("demo-model", INSTANT_PORT)]


def config_map(namespace: str, name: str, files: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": files}


def restricted_pod(namespace: str, name: str, containers: list[Object], volumes: list[Object] | None = None) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": containers,
            "volumes": [{"name": "tmp", "emptyDir": {}}, *(volumes or [])],
        },
    }


def container(name: str, image: str, *, args: list[str] | None = None, memory: str = "512Mi") -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **({"args": args} if args else {}),
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": memory}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _scripted_container(name: str, port: int, options: list[str]) -> Object:
    # The rows that ship with NeMo Gym are in the image; wrong on row 4 means the last of mcqa's five.
    gold = f"cat /opt/nhx/datasets/{MCQA_ROWS} /script/{_WORDCHECK_GOLD} > /tmp/{name}.jsonl"
    serve = (
        f"exec python /script/scripted_policy.py --gold /tmp/{name}.jsonl --wrong 4 --port {port} {' '.join(options)}"
    )
    server = container(name, reference("nhx-tasks"), args=["sh", "-efc", f"{gold}; {serve}"])
    server["env"] = [key_variable("SCRIPTED_KEY")]
    server["volumeMounts"].append({"name": "script", "mountPath": "/script", "readOnly": True})
    server["readinessProbe"] = {"httpGet": {"path": "/healthz", "port": port}, "periodSeconds": 1}
    return server


def key_variable(name: str) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": KEY_SECRET, "key": "api-key"}}}


def _service(name: str, *ports: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": MODELS_NAMESPACE},
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": f"p{port}", "port": port, "targetPort": port} for port in ports],
        },
    }


def _policy(base_url: str, model: str) -> Object:
    key = {"secretKeyRef": {"name": KEY_SECRET, "key": "api-key"}}
    return {"name": "policy", "baseUrl": base_url, "model": model, "apiKey": key}
