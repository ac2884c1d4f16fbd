"""Stories of hostile code on real pods: all that speaks in one job a runtime, and a pod for each flood."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devcluster.images.building import reference
from e2e import manifests, runs
from e2e.filesets import Staging, capitals_job, staging
from e2e.inspection import Inside
from e2e.installations import ALLOWED, GVISOR, RUNC, Installation
from e2e.manifests import INSTANT_PORT, MODELS_NAMESPACE, PATIENCE_SECONDS
from e2e.runs import Run, rows_of
from e2e.stage import idle_scenario, scenario
from e2e.world import World
from nhx_gym_operator.workloads import pods
from security import neighbours
from security.neighbours import HERE, Sandbox
from support import cluster, controller_values
from support.cluster import CommandError, Object
from support.job_watch import condition, is_true
from support.report import pods_of

GROUPS = ("network", "secrets", "evaluator", "forgery", "container")
"""Of `attacks.py`, a row each."""
FORGED = ("index", "nan", "infinity", "tokens", "nesting", "escapes", "log")
"""Answers of `app.py`, a row each."""
LAST = "init"
"""Of `attacks.py` too. Under gVisor the host ends with it, and the row has no answer."""
ROWS = (*GROUPS, *FORGED, LAST)
REFUSED_ROWS = ("secrets", "evaluator")
"""Rows over which the gateway refuses a model call: no reward may stand on such a one."""
UNREAL_ROWS = ("nan", "infinity", "nesting", "escapes")
"""Rows whose answer is none."""
FAILED_ROWS = (*REFUSED_ROWS, *UNREAL_ROWS)
TOKEN = "/var/run/secrets/nhx/tokens/host"
KEY_PATTERN = "sk-e2e-[0-9a-f]{24}"
RUNTIMES = {"gvisor": (GVISOR, "gvisor"), "runc": (RUNC, None)}
START_SECONDS = 500
LOST_SECONDS = 300
LOG_SECONDS = 3
"""Until a line that a pod has printed is in its log."""
EVICTED_SECONDS = 300
MEBIBYTE = 1 << 20
FLOOD_MEMORY_BYTES = 256 * MEBIBYTE
FLOOD_DISK_BYTES = 64 * MEBIBYTE
FLOOD_OUTPUT_BYTES = 16 * MEBIBYTE
"""Less than what the kubelet keeps of a container's output by itself: five files of 10 MiB, the older ones packed."""
FLOOD_LOG_LINES = 1000
"""Of a flood's output, the last ones: what it says of itself grows."""


@dataclass(frozen=True)
class HostileRun(Run):
    """A run of the hostile environment, with what was seen around it."""

    own: Sandbox = field(kw_only=True)
    probed: dict[str, Any] = field(kw_only=True)
    """What the prober saw of the same addresses, just before."""
    heard: dict[str, list[str]] = field(kw_only=True)
    """What listeners had heard when both jobs had ended."""
    expected: dict[str, list[str]] = field(kw_only=True)
    """What they had heard before either was let loose."""
    model_key: str = field(kw_only=True)
    tokens: dict[str, str] = field(kw_only=True)
    """The host's of each of the two jobs, by runtime."""

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The environment's word on each rollout that has a reward, by the row's attack."""
        if self.bundle is None:
            raise AssertionError("the run has no bundle")
        finished = self.bundle / "gym_run/rollouts.jsonl"
        if finished.exists():
            return {row["attack"]: row for row in rows_of(finished)}
        return {record["result"]["attack"]: record["result"] for record in self._journal("result")}

    @property
    def failures(self) -> dict[str, str]:
        """The class of each failed rollout, by the row's attack."""
        if self.bundle is None:
            raise AssertionError("the run has no bundle")
        finished = self.bundle / "gym_run/rollouts_failures.jsonl"
        if finished.exists():
            return {ROWS[row["_ng_task_index"]]: row["_ng_failure_class"] for row in rows_of(finished)}
        return {ROWS[record["task"]]: record["failure_class"] for record in self._journal("failure")}

    def _journal(self, kind: str) -> list[dict[str, Any]]:
        """What a cancelled job leaves."""
        assert self.bundle
        records = [line["record"] for line in rows_of(self.bundle / "journal.jsonl")]
        return [record for record in records if record["kind"] == kind]

    @property
    def evaluator_log(self) -> str:
        """Of the pod, or where that is gone what it wrote beside its journal."""
        if self.bundle is None:
            raise AssertionError("the run has no bundle")
        return self.logs.get("agent-evaluate") or (self.bundle / "evaluator.log").read_text()

    def saw(self, attack: str) -> Any:
        """What an attack says that it saw. Each row holds what was tried so far; the last one, all of it."""
        attempts = max((row["attempts"] for row in self.rows.values()), key=len)
        found = [attempt["saw"] for attempt in attempts if attempt["attack"] == attack]
        if len(found) != 1:
            raise AssertionError(f"{attack} was tried {len(found)} times, not once")
        return found[0]


@dataclass(frozen=True)
class Flood:
    """How a flooding pod ended."""

    pod: Object
    log: str
    node_tasks: int
    """The most processes and threads of the node that were seen in the pod's cgroup."""

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    @property
    def survived(self) -> bool:
        return any(isinstance(said.get("saw"), dict) and said["saw"].get("survived") for said in self.said)


@scenario
def hostile(world: World) -> dict[str, HostileRun]:
    """Two jobs at once, each other's neighbour. The last row of each kills PID 1, which gVisor lets happen."""
    namespaces = [installation.jobs for installation, _ in RUNTIMES.values()]
    neighbours.deploy(namespaces)
    jobs = {name: _job(place.jobs) for name, (place, _) in RUNTIMES.items()}
    for job in jobs.values():
        namespace = job["metadata"]["namespace"]
        cluster.apply(*_inputs(namespace), _rows(namespace, ROWS), job)
    pods = {name: _running_pods(world, job) for name, job in jobs.items()}
    boxes = {name: _sandbox(*pair) for name, pair in pods.items()}
    tokens = {name: Inside.of(host).says(f"cat {TOKEN}").strip() for name, (_, host) in pods.items()}
    targets, probed = {}, {}
    for name, other in (("gvisor", "runc"), ("runc", "gvisor")):
        targets[name] = neighbours.addresses(jobs[name]["metadata"]["namespace"], boxes[name], boxes[other]) | {
            "evaluator": f"http://{boxes[name].evaluator}:8080",
            "model": "scripted",
            "key_pattern": KEY_PATTERN,
            "stolen_token": tokens[other],
        }
        probed[name] = neighbours.probe(targets[name])
    time.sleep(LOG_SECONDS)
    before = neighbours.heard(namespaces)
    for name, (_, host) in pods.items():
        _hand_over(host, targets[name])
    lost = _until_lost(world, jobs["gvisor"])
    runs.nhx_json(world, "cancel", jobs["gvisor"], "--wait", "--timeout=180s")
    ended = {
        "gvisor": runs.cancelled(world, jobs["gvisor"], lost=lost),
        "runc": runs.succeeded(world, jobs["runc"]),
    }
    heard = neighbours.heard(namespaces)
    return {
        name: HostileRun(
            run.job, run.states, run.pods, run.logs, run.bundle, run.facts,
            own=boxes[name], probed=probed[name], heard=heard, expected=before, model_key=world.model_key,
            tokens=tokens,
        )
        for name, run in ended.items()
    }  # fmt: skip


def _job(namespace: str) -> Object:
    gym = {
        "environment": {"fileSet": {"name": "hostile"}},
        "resourcesServer": "hostile",
        "agent": "simple_agent",
        "agentRefName": "hostile_simple_agent",
        "modelType": "vllm_model",
        "numRepeats": 1,
        "concurrency": 1,
        "startupTimeoutSeconds": PATIENCE_SECONDS,
    }
    rows = {"configMap": {"name": "hostile-rows", "key": "rows.jsonl"}}
    job = manifests.job(namespace, "hostile", rows, gym, manifests.scripted_model())
    job["spec"]["minCoverage"] = 0.25
    job["spec"]["egress"] = {"allow": [ALLOWED]}
    return job


def _rows(namespace: str, attacks: Sequence[str]) -> Object:
    rows = [
        {"responses_create_params": {"input": [{"role": "user", "content": f"hostile row {attack}"}]}, "attack": attack}
        for attack in attacks
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return manifests.config_map(namespace, "hostile-rows", {"rows.jsonl": text})


def _inputs(namespace: str) -> list[Object]:
    """The hostile package as it lies beside these tests."""
    folder = HERE / "environment"
    files = sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    paths = {file.name: file.relative_to(folder).as_posix() for file in files}
    content = manifests.config_map(namespace, "hostile", {file.name: file.read_text() for file in files})
    items = [{"key": key, "path": path} for key, path in paths.items()]
    return [content, manifests.file_set(namespace, "hostile", {"configMap": {"name": "hostile", "items": items}})]


def _running_pods(world: World, job: Object) -> tuple[Object, Object]:
    """Evaluator and host of a job that collects."""
    namespace, name = runs.key_of(job)
    running = world.watch.until(namespace, name, _is_running, what="condition Running", timeout=START_SECONDS)
    found = {
        pod["metadata"]["labels"]["evals.nhx.io/role"]: pod for pod in pods_of(namespace, running["metadata"]["uid"])
    }
    return found["evaluator"], found["gym-host"]


def _is_running(state: Object) -> bool:
    return is_true(state, "Running")


def _sandbox(evaluator: Object, host: Object) -> Sandbox:
    namespace = host["metadata"]["namespace"]
    service = cluster.get("service", "hostile", namespace)["spec"]["clusterIP"]
    return Sandbox(service, evaluator["status"]["podIP"], host["status"]["podIP"])


def _hand_over(host: Object, targets: dict[str, Any]) -> None:
    """The accomplice's file, whole at once: the first row waits for it."""
    name, namespace = host["metadata"]["name"], host["metadata"]["namespace"]
    command = ["sh", "-c", "cat > /tmp/targets.new && mv /tmp/targets.new /tmp/targets.json"]
    done = cluster.execute(name, "gym-host", namespace, command, stdin=json.dumps(targets))
    if done.code:
        raise AssertionError(f"{namespace}/{name} could not be given its targets: {done.stderr}")


def _until_lost(world: World, job: Object) -> Object:
    """The state in which the job says that its host is gone."""
    namespace, name = runs.key_of(job)

    def is_lost(state: Object) -> bool:
        return condition(state, "SandboxReady").get("reason") == "HostLost"

    return world.watch.until(namespace, name, is_lost, what="a lost host", timeout=LOST_SECONDS)


@idle_scenario
def hostile_archives(world: World) -> dict[str, Staging]:
    """Environments that come as archives, made to write outside their folder or to fill the node."""
    archives: dict[str, Callable[[tarfile.TarFile], None]] = {
        "traversal": lambda tar: tar.addfile(*_entry("../../../tmp/owned")),
        "link": lambda tar: tar.addfile(_linked("resources_servers/out", "/var/run/secrets")),
        "device": lambda tar: tar.addfile(_device("resources_servers/device")),
        "bomb": lambda tar: tar.addfile(_stated("resources_servers/bomb", 1 << 40)),
    }
    cluster.apply(*manifests.file_server("hostile-archives", {f"{k}.tar.gz": _tar(v) for k, v in archives.items()}))
    cluster.kubectl(
        "wait", "pod/hostile-archives", f"--namespace={MODELS_NAMESPACE}", "--for=condition=Ready", timeout=90
    )
    found = {}
    for key in archives:
        name, url = f"archive-{key}", f"http://hostile-archives.{MODELS_NAMESPACE}:{INSTANT_PORT}/{key}.tar.gz"
        job = capitals_job(RUNC.jobs, name, name)
        cluster.apply(manifests.file_set(RUNC.jobs, name, {"http": {"url": url}}), job)
        found[key] = staging(world, job, name)
        cluster.delete("aej", name, RUNC.jobs, wait=False)
    return found


def _tar(add: Callable[[tarfile.TarFile], None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(*_entry("nemo-environment.yaml"))
        add(tar)
    return buffer.getvalue()


def _entry(path: str) -> tuple[tarfile.TarInfo, io.BytesIO]:
    entry = tarfile.TarInfo(path)
    entry.size = len(b"format: native-v1\n")
    return entry, io.BytesIO(b"format: native-v1\n")


def _linked(path: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


def _device(path: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.devmajor, entry.devminor = tarfile.BLKTYPE, 8, 0
    return entry


def _stated(path: str, size: int) -> tarfile.TarInfo:
    """A header that announces a file of this size, and no file."""
    entry = tarfile.TarInfo(path)
    entry.size = size
    return entry


@scenario
def floods(world: World) -> dict[str, dict[str, Flood]]:
    """Pods as the operator builds hosts, that run one flood each in place of a Gym; under both runtimes. No idle story:
    for some seconds they take what the machine has."""
    made = {name: _flooding(place, runtime_class) for name, (place, runtime_class) in RUNTIMES.items()}
    tasks: Counter[str] = Counter()
    deadline = time.monotonic() + EVICTED_SECONDS
    while True:
        pods = {name: _flood_pods(place.jobs) for name, (place, _) in RUNTIMES.items()}
        there = [pod for found in pods.values() for pod in found.values()]
        uids = {pod["metadata"]["uid"] for pod in there}
        tasks |= _tasks_by_pod(uids)  # the higher of each
        if all(pod["status"].get("phase") in ("Succeeded", "Failed") for pod in there) or time.monotonic() > deadline:
            break
        time.sleep(1)
    return {name: {kind: _flood(pods[name][pod], tasks) for kind, pod in made[name].items()} for name in made}


def _flood_pods(namespace: str) -> dict[str, Object]:
    return {pod["metadata"]["name"]: pod for pod in cluster.listed("pods", namespace, {"flood": "yes"})}


def _flood(pod: Object, tasks: Mapping[str, int]) -> Flood:
    metadata = pod["metadata"]
    last = f"--tail={FLOOD_LOG_LINES}"
    try:
        log = cluster.kubectl("logs", metadata["name"], f"--namespace={metadata['namespace']}", last)
    except CommandError:
        log = ""  # an evicted pod may have none any more
    return Flood(pod, log, tasks[metadata["uid"]])


def _tasks_by_pod(uids: set[str]) -> Counter[str]:
    """Processes and threads of this machine, which is the node, by the pod in whose cgroup they are."""
    found: Counter[str] = Counter()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            of = next((uid for uid in uids if uid in (process / "cgroup").read_text()), None)
            if of:
                found[of] += len(list((process / "task").iterdir()))
        except OSError:
            continue  # it has ended meanwhile
    return found


def _flooding(place: Installation, runtime_class: str | None) -> dict[str, str]:
    """Name of each pod by its flood."""
    namespace, secret = place.jobs, "flood-tokens"
    targets = {"memory_bytes": FLOOD_MEMORY_BYTES, "disk_bytes": FLOOD_DISK_BYTES, "disk_wait_s": EVICTED_SECONDS}
    targets["output_bytes"] = FLOOD_OUTPUT_BYTES
    scripts = {"attacks.py": neighbours.ATTACKS.read_text(), "targets.json": json.dumps(targets)}
    cluster.apply(
        manifests.config_map(namespace, "floods", scripts),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret, "namespace": namespace},
            "stringData": {"host": "no token"},
        },
    )
    limits = {
        "fork": {"memory": "2Gi", "ephemeral-storage": "512Mi"},
        "memory": {"memory": str(FLOOD_MEMORY_BYTES), "ephemeral-storage": "512Mi"},
        "disk": {"memory": "512Mi", "ephemeral-storage": str(FLOOD_DISK_BYTES)},
        "output": {"memory": "512Mi", "ephemeral-storage": str(FLOOD_OUTPUT_BYTES)},
    }
    names = {kind: f"flood-{kind}" for kind in limits}
    cluster.apply(
        *(_flood_pod(namespace, names[kind], kind, runtime_class, limit, secret) for kind, limit in limits.items())
    )
    return names


def _flood_pod(
    namespace: str, name: str, kind: str, runtime_class: str | None, limits: dict[str, str], secret: str
) -> Object:
    """The operator's own host pod but for the program, the gate and the job that it belongs to."""
    resources = {"requests": {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "1Mi"}, "limits": limits}
    images = {role: reference("nhx-gym-host") for role in ("tasks", "gymHost", "gymTasks")}
    options = controller_values.settings(images=images, resources={"gymHost": resources})
    of = controller_values.workload(options=options, runtime_class_name=runtime_class)
    built = pods.host_pod(of, 0)
    built["metadata"] = {"name": name, "namespace": namespace, "labels": {"flood": "yes"}}
    built["spec"].pop("initContainers")
    (container,) = built["spec"]["containers"]
    container["args"] = ["python", "-S", "/floods/attacks.py", kind, "/floods/targets.json"]
    container["volumeMounts"].append({"name": "floods", "mountPath": "/floods", "readOnly": True})
    built["spec"]["volumes"].append({"name": "floods", "configMap": {"name": "floods"}})
    for volume in built["spec"]["volumes"]:
        if "secret" in volume:
            volume["secret"]["secretName"] = secret
    return built
