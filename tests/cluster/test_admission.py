"""What a cluster puts into pods on their way in: containers, rights, priorities; and what an administrator asks for."""

import base64
import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cluster.world import condition
from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.controller.kube import PODS, ApiError, Resource
from support.certificates import private_authority
from support.controller_values import outcome

WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
MESH = {
    "name": "mesh",
    "image": "mesh:1",
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
EVALUATOR, HOST = "mcqa-evaluator-1", "mcqa-host-0-1"


@contextmanager
def answering(directory, patch, refuses=""):
    """A webhook's server that changes every pod in this way, or refuses it in these words. Gives its URL and the
    authority of its certificate."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = {
                "uid": review["request"]["uid"],
                "allowed": True,
                "patchType": "JSONPatch",
                "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
            }
            if refuses:
                response = {"uid": response["uid"], "allowed": False, "status": {"message": refuses}}
            body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    made = private_authority(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/", made.authority.read_bytes()
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
async def injecting(world, tmp_path):
    """`await injecting(role, patch)` has an admission webhook change this namespace's pods of that role."""
    servers, names = [], []

    async def inject(role, *patch):
        server = answering(tmp_path, patch)
        url, authority = server.__enter__()
        servers.append(server)
        webhook = {
            "name": "mesh.example.com",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(authority).decode()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
            "objectSelector": {"matchLabels": {"evals.nhx.io/role": role}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
        }
        name = f"mesh-{world.namespace}"
        await world._post(WEBHOOKS, {"metadata": {"name": name}, "webhooks": [webhook]})
        names.append(name)
        await world.until(is_applied(world, role), "the webhook is called")

    yield inject
    for name in names:
        await world._delete(WEBHOOKS, name, namespaced=False)
    for server in servers:
        server.__exit__(None, None, None)


def is_applied(world, role):
    """The API server learns of a webhook a moment after it is written."""

    async def changed():
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "labels": {"evals.nhx.io/role": role}},
            "spec": {
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "initContainers": [MESH | {"name": "first"}],
                "containers": [MESH | {"name": "main"}],
            },
        }
        try:
            made = await world._post(PODS, pod)
        except ApiError:
            return False  # refused after the change, by Pod Security: it is called
        await world.kill("probe")
        return [each["name"] for each in made["spec"]["containers"]] != ["main"] or "hostNetwork" in made["spec"]

    return changed


def adding(container):
    return {"op": "add", "path": "/spec/containers/-", "value": container}


async def test_a_container_that_never_ends_does_not_hold_up_the_outcome_and_goes_with_the_pod(
    world, operating, injecting
):
    await injecting("evaluator", adding(MESH))
    with operating():
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        pod = await world.api.get(PODS, world.namespace, EVALUATOR)
        assert [each["name"] for each in pod["spec"]["containers"]] == ["agent-evaluate", "mesh"]
        ended = {
            "exitCode": 0,
            "message": encode_outcome(outcome()).decode(),
            "startedAt": "2026-11-29T12:00:00Z",
            "finishedAt": "2026-11-29T12:01:00Z",
        }
        states = {"agent-evaluate": {"terminated": ended}, "mesh": {"running": {"startedAt": ended["startedAt"]}}}
        # Such a pod runs on for ever: its phase says so.
        await world.report(EVALUATOR, states, "Running")
        job = await world.until_phase("Succeeded")
        assert job["status"]["coverage"] == 1.0
        await world.until_no_pods()


async def test_a_container_in_a_host_that_nobody_asked_for_is_no_sandbox(world, operating, injecting):
    await injecting("gym-host", adding(MESH))
    with operating():
        await world.apply_job()
        job = await world.until_phase("Failed")
        failed = condition(job, "Failed")
        assert failed["reason"] == "PodChanged"
        for words in ("'mcqa-host-0-1'", "mesh", "evals.nhx.io/role=gym-host"):
            assert words in failed["message"]
        await world.until_no_pods()


async def test_pods_ask_the_known_injectors_to_leave_them_alone(world, operator):
    await world.apply_job()
    await world.until_condition("Running", "PodsCreated")
    for name in (EVALUATOR, HOST):
        metadata = (await world.api.get(PODS, world.namespace, name))["metadata"]
        for key in ("sidecar.istio.io/inject", "linkerd.io/inject", "kuma.io/sidecar-injection"):
            assert metadata["labels"][key] == metadata["annotations"][key] in ("false", "disabled")


PLACING = {
    "imagePullSecrets": [{"name": "regcred"}],
    "tolerations": [{"key": "evals", "operator": "Exists", "effect": "NoSchedule"}],
    "nodeSelector": {"disk": "ssd"},
}


@pytest.fixture
async def default_priority(world):
    """A cluster whose pods have a priority though they ask for none."""
    name = f"default-of-{world.namespace}"
    body = {"metadata": {"name": name}, "value": 1000, "globalDefault": True, "description": "of all pods"}
    await world._post(PRIORITIES, body)

    async def given():
        return (await world._post(PODS, bare(name)) or {}).get("spec", {}).get("priority") == 1000

    def bare(prefix):
        security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {"securityContext": security, "containers": [MESH]}
        return {"metadata": {"generateName": f"{prefix}-"}, "spec": spec}

    await world.until(given, "pods are given the default priority")
    for pod in await world.names(PODS):
        await world.kill(pod)
    yield name
    await world._delete(PRIORITIES, name, namespaced=False)


async def test_what_an_administrator_sets_stands_in_every_pod_and_what_the_cluster_adds_harms_none(
    world, operating, default_priority
):
    with operating(pods=PLACING):
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        for name in (EVALUATOR, HOST):
            spec = (await world.api.get(PODS, world.namespace, name))["spec"]
            assert spec["imagePullSecrets"] == PLACING["imagePullSecrets"]
            assert spec["nodeSelector"] == PLACING["nodeSelector"]
            assert PLACING["tolerations"][0] in spec["tolerations"]
            assert spec["priority"] == 1000 and spec["priorityClassName"] == default_priority
        await world.report_outcome(outcome())
        await world.until_phase("Succeeded")


async def test_a_pull_secret_that_is_missing_is_named_with_its_namespace_and_image(world, operating):
    with operating(pods=PLACING):
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        pod = await world.api.get(PODS, world.namespace, EVALUATOR)
        image = pod["spec"]["containers"][0]["image"]
        # In the kubelet's words (pkg/kubelet/kubelet_pods.go, pkg/kubelet/images/image_manager.go).
        words = "Unable to retrieve some image pull secrets (regcred); attempting to pull the image may not succeed."
        await world.complain(pod, "FailedToRetrieveImagePullSecret", words)
        pull = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}": 401 Unauthorized'}
        await world.report(EVALUATOR, {"agent-evaluate": {"waiting": pull}}, "Pending")
        job = await world.until_condition("Running", "PullSecretNotFound")
        said = condition(job, "Running")["message"]
        assert all(word in said for word in ("regcred", repr(world.namespace), image)), said
