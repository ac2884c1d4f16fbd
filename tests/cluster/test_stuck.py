"""Ways to get stuck, provoked on a real API server: each is named as docs/troubleshooting.md says, and ends.

What a kubelet says of pods is played, in its own words; who refuses and removes pods is real.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from cluster.control_plane import node_controllers
from cluster.test_admission import WEBHOOKS, answering
from cluster.world import LIMIT_RANGES, WAIT_SECONDS, condition
from nhx_gym_operator.api.wire.endpoints import Progress, Stage
from nhx_gym_operator.api.wire.reports import NO_OUTCOME_EXIT_CODE
from nhx_gym_operator.client.jobs import Job
from nhx_gym_operator.controller import clock, progress_poller
from nhx_gym_operator.controller.kube import CONFIG_MAPS, JOBS, PODS, SERVICES, ApiError
from nhx_gym_operator.controller.policies import lost_attempt
from nhx_gym_operator.workloads import tokens
from support import stuck
from support.controller_values import KEY, outcome, progress

EVALUATOR, HOST, COLOCATED = "mcqa-evaluator-1", "mcqa-host-0-1", "mcqa-gym-tasks-1"
SOON = {"podStartSeconds": 4, "waitForInputsSeconds": 4, "podAdmissionSeconds": 4}
AT = "2026-11-29T12:00:00Z"
RUNNING = {"running": {"startedAt": AT}}


async def until_seen(world, state: str, seconds: float = WAIT_SECONDS) -> dict:
    """The job, once it shows the state as the page says."""

    async def there():
        job = await world.job()
        return job if stuck.is_seen(state, job) else None

    job = await world.until(there, f"{state}: {stuck.state(state).says}", world.job, seconds)
    stuck.assert_seen(state, job)
    return job


EVALUATOR_IP = "127.77.0.2"


@pytest.fixture
async def reporting(world):
    """`await reporting(**spec)` has a job run as far as its evaluator says so, which is served here: it collects."""
    served = []

    async def run(hosts_ready=1, node="nowhere", stage=Stage.COLLECTING, message="", **spec):
        await started(world, **spec)
        token = tokens.progress_token(KEY, (await world.job())["metadata"]["uid"])
        done = int(stage is Stage.COLLECTING)
        said = Progress(stage=stage, attempt=1, done=done, total=10, hosts=1, hosts_ready=hosts_ready, message=message)

        async def answer(request: web.Request) -> web.Response:
            known = request.headers.get("Authorization") == f"Bearer {token}"
            return web.Response(text=said.model_dump_json()) if known else web.Response(status=401)

        app = web.Application()
        app.router.add_get("/progress", answer)
        served.append(web.AppRunner(app))
        await served[-1].setup()
        await web.TCPSite(served[-1], EVALUATOR_IP, 8080).start()
        evaluator = next(name for name in await world.names(PODS) if name in (EVALUATOR, COLOCATED))
        await world.bind(evaluator, node)
        await world.report_working(evaluator, "agent-evaluate", EVALUATOR_IP)
        if stage is Stage.COLLECTING:
            await world.until_phase("Running")

    yield run
    for runner in served:
        await runner.cleanup()


async def find_no_outcome(world) -> None:
    """What a pod says that looks for the outcome of an evaluator which was killed in the middle of its run."""
    await world.until_pods("mcqa-outcome-1")
    await world.report(
        "mcqa-outcome-1", {"read-outcome": ended("Error", NO_OUTCOME_EXIT_CODE, "it had none")}, "Failed"
    )


async def until_ended(world, state: str) -> None:
    stuck.assert_ended(state, await world.until_phase("Failed"))


async def started(world, **changes) -> None:
    await world.apply_job(**changes)
    await world.until_condition("Running", "PodsCreated")


def ended(reason: str, code: int, message: str = "") -> dict:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "startedAt": AT, "finishedAt": AT}}


def told_to_end(world, pod):
    async def told():
        return "deletionTimestamp" in (await world.api.get(PODS, world.namespace, pod))["metadata"]

    return told


# Before there are pods


@pytest.mark.parametrize(
    ("state", "spec"),
    [
        ("A ConfigMap is missing or late", {"tasks": {"dataset": {"configMap": {"name": "rows", "key": "r"}}}}),
        ("A FileSet is missing or late", {"gym": {"environment": {"fileSet": {"name": "mine"}}}}),
        ("A claim is missing or late", {"results": {"persistentVolumeClaim": {"claimName": "mine"}}}),
    ],
    ids=["ConfigMap", "FileSet", "claim"],
)
async def test_what_a_job_names_is_missing(world, operating, state, spec):
    with operating(timeouts=SOON):
        await world.apply_job(**spec)
        await until_seen(world, state)
        await until_ended(world, state)


async def test_a_quota_that_is_used_up(world, operating):
    with operating(timeouts=SOON):
        await world.limit_pods(1)
        await world.apply_job()
        await until_seen(world, "The quota is used up")
        await until_ended(world, "The quota is used up")
        await world.until_no_pods()


async def test_a_limit_range_that_refuses_the_pods(world, operating):
    limits = {"limits": [{"type": "Container", "max": {"memory": "100Mi"}}]}
    with operating(timeouts=SOON):
        await world._post(LIMIT_RANGES, {"metadata": {"name": "small"}, "spec": limits})
        await world.apply_job()
        await until_seen(world, "A LimitRange refuses the pods")
        await until_ended(world, "A LimitRange refuses the pods")


async def test_a_range_of_service_addresses_that_is_full(world, operating, no_service_address):
    with operating(timeouts=SOON):
        await world.apply_job()
        await until_seen(world, "The cluster has no Service address left")
        await until_ended(world, "The cluster has no Service address left")
        await world.until_no_pods()


@pytest.fixture
async def no_service_address(world):
    """Every address of the API server's range is given to a Service that nobody needs."""
    made = []
    try:
        with pytest.raises(ApiError, match="range is full"):
            while True:
                await world.create_service(f"needless-{len(made)}")
                made.append(f"needless-{len(made)}")
        yield
    finally:
        for name in made:
            await world.remove(SERVICES, name)


async def test_a_webhook_that_refuses_the_pods(world, operating, refusing):
    with operating(timeouts=SOON):
        await world.apply_job()
        await until_seen(world, "An admission webhook refuses the pods")
        await until_ended(world, "An admission webhook refuses the pods")


@pytest.fixture
async def refusing(world, tmp_path):
    """An admission webhook that wants no pods in this namespace."""
    with answering(tmp_path, [], refuses="no pods of this kind here") as (url, authority):
        name = f"refusing-{world.namespace}"
        webhook = {
            "name": "policy.example.com",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(authority).decode()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        await world._post(WEBHOOKS, {"metadata": {"name": name}, "webhooks": [webhook]})
        await asyncio.sleep(2)  # until the API server has heard of it
        yield
        await world._delete(WEBHOOKS, name, namespaced=False)


# Pods that do not start, as a kubelet tells it


async def test_an_image_that_is_slow_to_pull(world, operating):
    with operating(timeouts={"podStartSeconds": 25}):
        await started(world)
        creating = {"waiting": {"reason": "ContainerCreating"}}
        for pod, container in ((EVALUATOR, "agent-evaluate"), (HOST, "gym-host")):
            await world.bind(pod)
            await world.report(pod, {container: creating}, "Pending")
        await until_seen(world, "The image is slow to pull, a volume slow to mount")
        await until_ended(world, "The image is slow to pull, a volume slow to mount")


async def test_a_secret_that_is_missing(world, operating):
    with operating(timeouts={"waitForInputsSeconds": 25}):
        await started(world)
        pod = await world.api.get(PODS, world.namespace, EVALUATOR)
        words = 'MountVolume.SetUp failed for volume "model-key-0" : secret "model" not found'
        await world.complain(pod, "FailedMount", words)
        await until_seen(world, "A Secret is missing or late")
        await until_ended(world, "A Secret is missing or late")


async def test_a_command_that_the_image_does_not_have(world, operating):
    # containerd's words, as a kubelet of 1.35 writes them for a pod that is not started again.
    words = (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
        'unable to start container process: error during container init: exec: "python": executable file not found in '
        "$PATH"
    )
    state = "A command that the image does not have"
    with operating():
        await started(world, backoffLimit=1)
        await world.report(EVALUATOR, {"agent-evaluate": ended("StartError", 128, words)}, "Failed")
        await until_seen(world, state)
        await world.until_pods("mcqa-evaluator-2")
        await world.until_condition("Running", "PodsCreated")
        await world.report("mcqa-evaluator-2", {"agent-evaluate": ended("StartError", 128, words)}, "Failed")
        await until_ended(world, state)


async def test_an_image_with_a_program_of_its_own(world, operating, monkeypatch):
    """Which runs, and is no evaluator: nobody answers at the pod's address."""
    monkeypatch.setattr(progress_poller, "SILENT_SECONDS", 1.0)
    with operating(sandbox={"mode": "Disabled"}):
        await started(world)
        await world.bind(COLOCATED)
        await world.report_working(COLOCATED, "agent-evaluate", EVALUATOR_IP)
        await until_seen(world, "The evaluator runs and does not answer")


async def test_gyms_servers_never_get_ready(world, operator):
    await started(world)
    await world.report_running()
    await world.report(HOST, {"sandbox-gate": ended("Completed", 0), "gym-host": RUNNING})
    await until_seen(world, "Gym's servers never get ready")


async def test_gyms_servers_never_get_ready_in_a_colocated_job(world, operating, reporting):
    """The evaluator says what it waits for, as tests of its own see."""
    until = "it waits until 2026-11-29T12:05:00Z at most (spec.target.gym.startupTimeoutSeconds)"
    with operating(sandbox={"mode": "Disabled"}):
        await reporting(stage=Stage.STARTING, message=f"Gym's servers are starting; {until}")
        await until_seen(world, "Gym's servers never get ready, in a colocated job")


async def test_a_node_that_is_too_busy_for_gym(world, operating):
    """What an evaluator says then, tests of its own see."""
    state = "The node is too busy for Gym to start"
    words = "the node was too busy for Gym to start: Exception: The current node timed out during startup."
    early = progress(Stage.STARTING, hosts_ready=0)
    gave_up = outcome("Failed", reason="EvaluatorLost", message=words, progress=early)
    with operating():
        await started(world, backoffLimit=1)
        await world.report_outcome(gave_up)
        await until_seen(world, state)
        await world.until_pods("mcqa-evaluator-2")
        await world.until_condition("Running", "PodsCreated")
        await world.report_outcome(gave_up, "mcqa-evaluator-2")
        await until_ended(world, state)


# Pods that are taken away


async def test_a_pod_that_is_evicted(world, operating):
    words = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 51328Ki."
    with operating():
        await started(world)
        await world.report(EVALUATOR, {}, "Failed", reason="Evicted", message=words)
        await until_seen(world, "A pod is evicted")


async def test_a_node_that_is_drained(world, operator):
    """By the Eviction API, which a drain calls. The pod goes at once: its kubelet is nobody."""
    await started(world)
    await world.bind(EVALUATOR)
    await world.report_running()
    await world.evict(EVALUATOR)
    await world.kill(EVALUATOR)
    await find_no_outcome(world)
    await until_seen(world, "A node is drained")


async def ends(world, restarts: int, state: dict | None = None) -> None:
    """The evaluator's container is out of memory now, having been started again so often; it is in this state since."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    end = ended("OOMKilled", 137)["terminated"] | {"finishedAt": now}
    shown = {"name": "agent-evaluate", "restartCount": restarts, "ready": False}
    shown |= {"state": state, "lastState": {"terminated": end}} if state else {"state": {"terminated": end}}
    of_image = {"image": "x", "imageID": f"x@sha256:{'0' * 64}"}
    status = {"phase": "Running", "containerStatuses": [shown | of_image]}
    await world.api.patch_status(PODS, world.namespace, EVALUATOR, {"status": status})


async def test_an_evaluator_that_is_killed_again_and_again(world, operating, reporting):
    """Twice it is started again where it was; the third end loses the attempt, of which one is borne."""
    with operating():
        await reporting(backoffLimit=6)
        await ends(world, 0)
        job = await until_seen(world, "The evaluator runs out of memory")
        assert "time 1 of 2 at most; 1 of 10 rollouts are recorded and stay" in Job(job).cause["message"]
        await ends(world, 1, RUNNING)
        await world.until_phase("Running")
        again = await world.until_condition("Running", "Collecting")
        assert (
            "was started again in its pod (time 1), after OOMKilled, exit code 137"
            in condition(again, "Running")["message"]
        )
        assert "lostAttempts" not in again["status"]
        await ends(world, 1, {"waiting": {"reason": "CrashLoopBackOff"}})
        await until_seen(world, "The evaluator runs out of memory")
        await ends(world, 2)
        lost = await until_seen(world, "The evaluator runs out of memory again and again")
        assert lost["status"]["lostAttempts"] == 1
        assert "it ended 3 times in its place" in condition(lost, "Running")["message"]


async def test_a_gym_host_that_runs_out_of_memory(world, operating, reporting):
    """Again and again; the evaluator says that it has lost it."""
    state = "A gym host runs out of memory"
    with operating():
        await reporting(hosts_ready=0)
        await world.report(HOST, {"sandbox-gate": ended("Completed", 0), "gym-host": ended("OOMKilled", 137)}, "Failed")
        await until_seen(world, state)
        await world._patch(JOBS, "mcqa", {"spec": {"backoffLimit": 0}})
        await until_ended(world, state)


SILENT_NODE = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 8}
    for taint in ("not-ready", "unreachable")
]


@pytest.mark.nightly
async def test_a_node_that_falls_silent(world, operating, reporting, kubeconfig, monkeypatch):
    """By Kubernetes' own controllers: it is called not ready, and its pods are told to end. While no node reports they
    would give up none, so another one does."""
    monkeypatch.setattr(lost_attempt, "REPORT_SECONDS", 2.0)
    node = f"node-of-{world.namespace}"
    with node_controllers(kubeconfig), operating(pods={"tolerations": SILENT_NODE}):
        await world.create_node(node)
        async with world.reporting_node(f"other-than-{node}"):
            await reporting(node=node, gym={"shutdownGraceSeconds": 1})
            await until_seen(world, "A node is not ready")
            await until_seen(world, "A pod is to end on a node that does not report")
        await world.delete_node(node)
        await world.kill(EVALUATOR)


@pytest.mark.nightly
async def test_a_node_that_is_gone(world, operator, reporting, kubeconfig):
    """Its pods are removed by the cluster's garbage collector."""
    node = f"node-of-{world.namespace}"
    with node_controllers(kubeconfig):
        await world.create_node(node)
        await reporting(node=node)
        await world.delete_node(node)
        await world.until_pods_gone(EVALUATOR, seconds=150)
        await find_no_outcome(world)
        await until_seen(world, "A node is gone")


# While a job runs


@pytest.mark.nightly
async def test_what_a_job_names_is_deleted_in_the_middle_of_its_run(world, operating):
    state = "What a job names is deleted in the middle of its run"
    with operating(timeouts={"waitForInputsSeconds": 4}):
        await world.create_config_map("rows", r="{}")
        await started(world, tasks={"dataset": {"configMap": {"name": "rows", "key": "r"}}})
        await world.bind(EVALUATOR)
        await world.bind(HOST)
        await world.report_running()
        await world.report(HOST, {"gym-host": RUNNING})
        await world.remove(CONFIG_MAPS, "rows")
        await asyncio.sleep(3)
        assert Job(await world.job()).phase == "Starting", "pods keep what they mounted"
        await world.kill(EVALUATOR)
        await find_no_outcome(world)
        await world.until(told_to_end(world, HOST), "the host is told to end")
        await world.kill(HOST)
        await until_seen(world, state)
        await until_ended(world, state)


async def test_an_operator_whose_clock_is_wrong_ends_no_job_before_its_time(world, operating, monkeypatch):
    right = clock.now
    for wrong in (timedelta(hours=2), -timedelta(hours=2)):
        monkeypatch.setattr(clock, "now", lambda wrong=wrong: right() + wrong)
        with operating():
            if wrong > timedelta(0):
                await world.apply_job()
            job = await until_seen(world, "The operator's clock is wrong")
            said = datetime.fromisoformat(job["status"]["startTime"])
            assert abs((said - right()).total_seconds()) < 300


@pytest.mark.nightly
async def test_an_api_server_that_was_away_is_caught_up_with_within_a_minute(world, operator, frozen_api_server):
    await world.apply_job()
    await until_seen(world, "The API server is away")
    with frozen_api_server():
        await asyncio.sleep(AWAY_SECONDS)
    await world.report(EVALUATOR, {}, "Failed", reason="Evicted", message="low on memory")
    await until_seen(world, "A pod is evicted")


@pytest.mark.nightly
async def test_so_is_one_that_was_away_for_two_minutes(world, operator, frozen_api_server):
    await world.apply_job()
    await until_seen(world, "The API server is away")
    with frozen_api_server():
        await asyncio.sleep(120)
    await world.report(EVALUATOR, {}, "Failed", reason="Evicted", message="low on memory")
    await until_seen(world, "A pod is evicted")


AWAY_SECONDS = 15.0


@pytest.fixture
def frozen_api_server(kubeconfig):
    """`with frozen_api_server():` the API server answers nothing and keeps its sockets."""

    @contextmanager
    def freeze():
        pid = int((kubeconfig.parent / "kube-apiserver.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    return freeze
