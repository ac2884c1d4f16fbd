"""What the tests put on the cluster besides the operator: jobs, and the model servers that they speak to."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
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
CAPITALS = ROOT / "examples/capitals"
CAPITALS_TASKS = 3
_WORDCHECK_GOLD = "wordcheck.jsonl"

_PORTS = range(8000, 8008)
INSTANT_PORT, SLOW_PORT, WATCHED_PORT, JUDGE_PORT, RECORDED_PORT, FLAKY_PORT, HUNG_PORT, REFUSING_PORT = _PORTS
FLAKY_ROW = 1
"""The flaky server fails the first call about this row, and no other."""
REFUSED_ROW, LONG_ROW = 0, 1
"""Of the refusing server: a row whose calls it does not understand, and one whose prompt is too long for it."""
REFUSAL = "parameter max_tokens not supported"
TOO_LONG = "This model's maximum context length is 10 tokens. However, you requested 11 tokens"
"""NeMo Gym's vllm_model takes a 400 with either of these words for an answer that was cut off, which earns a 0."""
VERDICT = "[[COMPLIED]]"
TOOL_SECRET, TOOL_TOKEN = "tool-token", "a token for a tool"
GREETING = 'it\'s "plain" text, a=b [x] {y} $HOME \\ and more'
MARKS = {
    "list": [1, "two", {"three": None, "deep": [[], [True, 1.5]]}],
    "quoted": 'it\'s "q", a=b [x] {y} 50% #1 \\d+',
    "words": ["true", "null", "1.5", "", " a b "],
    "nested": {"a": {"b": {"c": False}}},
}
"""Shapes that a command line or a configuration language may take for something else."""
BOUND_BY_HAND = {
    "bindResourcesServer": False,
    "hydraParams": {"simple_agent.responses_api_agents.simple_agent.resources_server.name": "mcqa"},
}
"""For `target.gym`: the agent's own instance, which names no resources server."""
_STUBBORN = """
if __name__ == "__main__":
    import subprocess
    import sys

    ignore = "import signal, time; [signal.signal(number, signal.SIG_IGN) for number in (1, 2, 15)]"
    subprocess.Popen([sys.executable, "-c", f"{ignore}; print('stubborn child', flush=True); time.sleep(900)"])
"""
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


def as_flags(job: Object, rows: Path) -> list[str]:
    """A job as `kubectl nhx submit` takes it without a manifest, its rows from a file of this machine."""
    gym, model = job["spec"]["target"]["gym"], job["spec"]["models"][0]
    key = model["apiKey"]["secretKeyRef"]
    flags = {
        "name": job["metadata"]["name"],
        "namespace": job["metadata"]["namespace"],
        "agent": gym["agent"],
        "agent-config": gym["agentConfig"],
        "agent-ref-name": gym["agentRefName"],
        "resources-server": gym["resourcesServer"],
        "model-type": gym["modelType"],
        "num-repeats": gym["numRepeats"],
        "concurrency": gym["concurrency"],
        "startup-timeout": f"{gym['startupTimeoutSeconds']}s",
        "dataset": rows,
        "base-url": model["baseUrl"],
        "model": model["model"],
        "api-key": f"{key['name']}/{key['key']}",
        "results": job["spec"]["results"]["persistentVolumeClaim"]["size"],
    }
    return [f"--{name}={value}" for name, value in flags.items()]


def as_spec_file(job: Object) -> Object:
    """A job as a spec file of NeMo Gym's platform. Its rows stand in no such file; its key does by a reference."""
    gym, model = job["spec"]["target"]["gym"], job["spec"]["models"][0]
    named = {
        "resources_server": "resourcesServer",
        "model_type": "modelType",
        "bind_resources_server": "bindResourcesServer",
        "num_repeats": "numRepeats",
        "concurrency": "concurrency",
        "startup_timeout_s": "startupTimeoutSeconds",
    }
    source = {"component": "agent", "config": "agentConfig", "instance": "agentRefName"}
    route = {
        "policy_base_url": model["baseUrl"],
        "policy_model_name": model["model"],
        "policy_api_key": "${oc.env:POLICY_API_KEY}",
    }
    return {
        "tasks": "stated-beside-it",
        "target": {
            "kind": "gym",
            "source": {theirs: gym[ours] for theirs, ours in source.items() if ours in gym},
            **{theirs: gym[ours] for theirs, ours in named.items() if ours in gym},
            "hydra_params": gym.get("hydraParams", {}) | route,
            "env_secrets": {"POLICY_API_KEY": model["apiKey"]["secretKeyRef"]["name"]},
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


def stubborn(namespace: str) -> Example:
    """Wordcheck, whose server starts a child that ignores every signal that it can."""
    text = json.dumps(wordcheck(namespace).objects)
    for name in ("wordcheck", "wordcheck-environment", "wordcheck-rows"):
        text = text.replace(f'"name": "{name}"', f'"name": "{name.replace("wordcheck", "stubborn")}"')
    example = Example(json.loads(text))
    files = next(entry["data"] for entry in example.objects if "app.py" in entry.get("data", {}))
    files["app.py"] = files["app.py"].replace("\nif __name__", f"{_STUBBORN}\nif __name__", 1)
    return example


def scripted_model(port: int = INSTANT_PORT) -> Object:
    return _policy(f"http://scripted.{MODELS_NAMESPACE}:{port}/v1", "scripted")


def judge_model() -> Object:
    return scripted_model(JUDGE_PORT) | {"name": "judge", "model": "scripted-judge"}


def marks_of(namespace: str) -> str:
    """Each namespace's job has marks of its own: the judge's server shows what it was sent last."""
    return f"marks_of_{namespace.replace('-', '_')}"


def judged_job(namespace: str, name: str) -> Object:
    """NeMo Gym's over_refusal_detection: its verifier asks a second model, by `${judge_base_url}` and so on.

    What the judge gets besides shows what became of `hydraParams`, `envVars` and `envSecrets`.
    """
    extra = {marks_of(namespace): MARKS | {"variable": "${oc.env:GREETING}", "secret": "${oc.env:TOOL_TOKEN}"}}
    target = {
        "agent": "simple_agent",
        "agentConfig": "responses_api_agents/simple_agent/configs/simple_agent.yaml",
        "resourcesServer": "over_refusal_detection",
        "modelType": "openai_model",
        "numRepeats": REPEATS,
        "concurrency": 8,
        "startupTimeoutSeconds": PATIENCE_SECONDS,
        "envVars": {"GREETING": GREETING},
        "envSecrets": {"TOOL_TOKEN": {"secretKeyRef": {"name": TOOL_SECRET, "key": "api-key"}}},
        "hydraParams": {
            "judge_model": {"responses_api_models": {"openai_model": {"extra_body": extra}}},
            "over_refusal_detection.resources_servers.over_refusal_detection.reward_if_complied": 0.75,
        },
    }
    rows = "resources_servers/over_refusal_detection/data/example.jsonl"
    found = job(namespace, name, {"bundled": rows}, target, scripted_model())
    found["spec"]["models"].append(judge_model())
    return found


def demo_model() -> Object:
    return _policy(f"http://demo-model.{MODELS_NAMESPACE}:{INSTANT_PORT}/v1", "smollm2-135m-instruct")


def key_secret(namespace: str, key: str, name: str = KEY_SECRET) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        # `value` is the key under which a reference of a spec file or a runner looks for it.
        "stringData": {"api-key": key, "value": key},
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


def scripted_policy(wordcheck_rows: str, replayed: Iterable[str]) -> list[Object]:
    """Four servers with the same answers: instant, slow, a slow one whose calls one test counts, and one that fails
    once. A judge with one verdict, one that answers nothing, one that refuses two rows of mcqa, and one that says
    what models said in the rollouts that ship with the `replayed` resources servers."""
    files = {"scripted_policy.py": SCRIPT.read_text(), _WORDCHECK_GOLD: wordcheck_rows}
    slow = ["--fault", f"*:delay={SLOW_SECONDS}"]
    containers = [
        _scripted_container("instant", INSTANT_PORT, []),
        _scripted_container("slow", SLOW_PORT, slow),
        _scripted_container("watched", WATCHED_PORT, slow),
        _scripted_container("judge", JUDGE_PORT, ["--unknown", f"'{VERDICT}'"]),
        _scripted_container("flaky", FLAKY_PORT, ["--fault", f"{FLAKY_ROW}:status=503:times=1"]),
        _scripted_container("recorded", RECORDED_PORT, [_recorded(server) for server in replayed]),
        _scripted_container("hung", HUNG_PORT, ["--fault", "'*:hang'"]),
        _scripted_container("refusing", REFUSING_PORT, [_refused(REFUSED_ROW, REFUSAL), _refused(LONG_ROW, TOO_LONG)]),
    ]
    pod = restricted_pod(
        MODELS_NAMESPACE, "scripted", containers, [{"name": "script", "configMap": {"name": "scripted"}}]
    )
    pod["spec"]["restartPolicy"] = "Always"
    return [
        config_map(MODELS_NAMESPACE, "scripted", files),
        pod,
        _service("scripted", *_PORTS),
    ]


def claim(namespace: str, name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def file_server(name: str, files: dict[str, bytes]) -> list[Object]:
    """A web server, `http://NAME.NAMESPACE:8000/`, that gives these files to whoever asks."""
    data = {path: base64.b64encode(content).decode() for path, content in files.items()}
    content = {**config_map(MODELS_NAMESPACE, name, {}), "binaryData": data}
    args = ["python", "-m", "http.server", str(INSTANT_PORT), "--directory", "/files"]
    server = container(name, reference("nhx-tasks"), args=args)
    server["volumeMounts"].append({"name": "files", "mountPath": "/files", "readOnly": True})
    server["readinessProbe"] = {"tcpSocket": {"port": INSTANT_PORT}, "periodSeconds": 1}
    pod = restricted_pod(MODELS_NAMESPACE, name, [server], [{"name": "files", "configMap": {"name": name}}])
    return [content, pod, _service(name, INSTANT_PORT)]


def file_set(namespace: str, name: str, source: Object, purpose: str = "environment", **spec: Any) -> Object:
    return {
        "apiVersion": "evals.nhx.io/v1alpha1",
        "kind": "FileSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"purpose": purpose, "source": source, **spec},
    }


THINKING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role + '\\n' }}{% if message.reasoning_content %}"
    "{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""By which a server of `demo-model` tells thoughts from answers."""


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


def _recorded(server: str) -> str:
    return f"--replay /opt/nhx/datasets/resources_servers/{server}/data/example_rollouts.jsonl"


def _refused(row: int, words: str) -> str:
    return f"--fault {shlex.quote(f'{row}:status=400:words={words}')}"


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
