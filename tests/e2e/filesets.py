"""Stories of FileSets: environments and rows from every kind of source."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.images.building import reference
from devcluster.settings import NODE_IP
from e2e import manifests, runs
from e2e.installations import GVISOR, RUNC
from e2e.manifests import CAPITALS, INSTANT_PORT, MCQA_ROWS, MODELS_NAMESPACE, PATIENCE_SECONDS
from e2e.runs import Run
from e2e.stage import idle_scenario, nightly, scenario
from e2e.world import World
from nhx_gym_operator.api.tree import content_sum, digest_of_sums
from support import cluster
from support.cluster import ROOT, Object
from support.job_watch import condition
from support.page import Page
from support.s3_server import S3Server, s3_server

STATUS_SECONDS = 60
PREFIX = "my envs/capitals+v2"
ELSEWHERE = "policy_base_url: http://198.18.0.1:9/elsewhere/v1\npolicy_model_name: another\n"
"""An env.yaml, as it lies beside Gym on a user's own machine. Were it read, no rollout would have an answer."""
PAGE = ROOT / "docs/custom-environments.md"


@dataclass(frozen=True)
class Staging:
    """How far the staging of one FileSet came, and what its status then says."""

    job: Object
    file_set: Object

    @property
    def resolved(self) -> dict[str, Any]:
        return condition(self.file_set, "Resolved")


@nightly
@scenario
def wheels_from_a_bucket(world: World) -> Run:
    """The page's environment with a wheel of its own, from a real S3 server; rows from an archive on a web server."""
    content = _wheels_environment(world.directory / "wheels")
    rows = _zip({"capitals-1.0/rows.jsonl": (CAPITALS / "rows.jsonl").read_bytes()})
    cluster.apply(*manifests.file_server("files", {"rows.zip": rows, "env.tar.gz": _tar(_plain_environment())}))
    _ready("files")
    with s3_server(world.directory / "s3-filesets", host=NODE_IP) as server:
        _put(server, "evaluations", PREFIX, content)
        environment, keys = _in_bucket(server, {"prefix": f"{PREFIX}/"})
        archive = {"http": {"url": f"{_files_url()}/rows.zip", "path": "capitals-1.0"}}
        cluster.apply(
            keys,
            manifests.file_set(GVISOR.jobs, "capitals-wheels", environment),
            manifests.file_set(GVISOR.jobs, "capitals-rows", archive, "dataset"),
        )
        job = capitals_job(GVISOR.jobs, "capitals-wheels", "capitals-wheels")
        cluster.apply(job)
        run = runs.succeeded(world, job, digest=digest_of(content))
    sets = {name: cluster.get("fileset", name, GVISOR.jobs) for name in ("capitals-wheels", "capitals-rows")}
    return Run(run.job, run.states, run.pods, run.logs, run.bundle, run.facts | sets)


@scenario
def from_the_page(world: World) -> Run:
    """docs/custom-environments.md, its files and its commands, in an empty folder; only model and patience are ours."""
    said = _played(world, "page", "")
    return runs.succeeded(world, cluster.get("aej", "capitals", RUNC.jobs), said=said)


@nightly
@scenario
def wheels_from_the_page(world: World) -> Run:
    """The page's second part: the wheel is built, and the plugin submits the folder as it lies there."""
    said = _played(world, "page-with-wheels", "wheels", "run-with-wheels")
    made = (("configmap", "rows"), ("configmap", "environment"), ("fileset", "environment"))
    owned = {
        f"{kind}/{what}": cluster.get(kind, f"capitals-wheels-{what}", RUNC.jobs)["metadata"]["ownerReferences"]
        for kind, what in made
    }
    return runs.succeeded(world, cluster.get("aej", "capitals-wheels", RUNC.jobs), said=said, owned=owned)


def _played(world: World, name: str, *labels: str) -> str:
    """What the page's commands of these labels print in a folder of that name, which holds the files that it shows: of
    one that it shows twice the first for its first part, and the last for the others."""
    page, folder = Page.read(PAGE), world.directory / name
    shown: set[str] = set()
    for path, text in page.files():
        if path in shown and "" in labels:
            continue
        shown.add(path)
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_with_our_model(text))
    settings = folder / "kubeconfig"
    settings.write_text(cluster.kubectl("config", "view", "--raw", "--flatten"))
    extra = runs.with_plugin(world) | {"KUBECONFIG": str(settings), "UV_OFFLINE": "1", "UV_PYTHON": sys.executable}
    extra["PATH"] += f"{os.pathsep}{Path(sys.executable).parent}"
    cluster.run(["kubectl", "config", "set-context", "--current", f"--namespace={RUNC.jobs}"], extra=extra)
    (folder / "KEY-FILE").write_text(world.model_key)
    commands = "".join(page.commands(label) for label in labels)
    script = f"cd {folder}\n{_with_our_model(commands)}"
    return cluster.run(["bash", "-efc", script], extra=extra, timeout=runs.RUN_SECONDS)


@idle_scenario
def other_sources(world: World) -> dict[str, Staging]:
    """Environments and rows from a claim, an archive and an image, up to what is staged: Gym is not waited for."""
    content = _plain_environment()
    cluster.apply(*manifests.file_server("archives", {"env.tar.gz": _tar(content)}))
    _fill_claim(RUNC.jobs, "environments", _tar(content))
    _ready("archives")
    archive = {"url": f"http://archives.{MODELS_NAMESPACE}:{INSTANT_PORT}/env.tar.gz", "path": "top"}
    rows, _, name = MCQA_ROWS.rpartition("/")
    image = {"reference": reference("nhx-tasks"), "pullPolicy": "IfNotPresent", "path": f"opt/nhx/datasets/{rows}"}
    sources = {
        "claim": {"persistentVolumeClaim": {"claimName": "environments", "path": "top"}},
        "archive": {"http": archive},
        "pinned": {"http": archive | {"sha256": "0" * 64}},
        "missing": {"http": archive | {"url": archive["url"].replace("env.", "envv.")}},
        "metadata": {"http": {"url": "http://169.254.169.254/latest/env.tar.gz"}},
        "image": {"image": image},
    }
    found = {}
    for key, source in sources.items():
        purpose = "dataset" if key == "image" else "environment"
        cluster.apply(manifests.file_set(RUNC.jobs, f"from-{key}", source, purpose))
        job = capitals_job(RUNC.jobs, f"from-{key}", f"from-{key}")
        if purpose == "dataset":
            job = manifests.mcqa_job(RUNC.jobs, f"from-{key}")
            job["spec"]["tasks"] = {"dataset": {"fileSet": {"name": f"from-{key}", "path": name}}}
        cluster.apply(job)
        found[key] = staging(world, job, f"from-{key}")
        cluster.delete("aej", f"from-{key}", RUNC.jobs, wait=False)
    return found


@idle_scenario
def lacking_requirement(world: World) -> Run:
    """An environment that asks for what only a package index has."""
    content = _plain_environment()
    listed = "resources_servers/capitals/requirements.txt"
    content[listed] += b"nowhere-to-be-found>=2\n"
    keys = {str(number): path for number, path in enumerate(sorted(content))}
    files = manifests.config_map(RUNC.jobs, "lacking", {key: content[path].decode() for key, path in keys.items()})
    items = [{"key": key, "path": path} for key, path in keys.items()]
    source = {"configMap": {"name": "lacking", "items": items}}
    job = capitals_job(RUNC.jobs, "lacking", "lacking")
    cluster.apply(files, manifests.file_set(RUNC.jobs, "lacking", source), job)
    return runs.failed(world, job)


def capitals_job(namespace: str, name: str, environment: str) -> Object:
    gym = {
        "environment": {"fileSet": {"name": environment}},
        "resourcesServer": "capitals",
        "agent": "simple_agent",
        "agentRefName": "capitals_agent",
        "modelType": "vllm_model",
        "numRepeats": 2,
        "startupTimeoutSeconds": PATIENCE_SECONDS,
    }
    dataset = {"fileSet": {"name": "capitals-rows", "path": "rows.jsonl"}}
    if environment != "capitals-wheels":
        # Jobs that are only staged: any rows do.
        dataset = {"bundled": MCQA_ROWS}
    return manifests.job(namespace, name, dataset, gym, manifests.scripted_model())


def _with_our_model(text: str) -> str:
    ours = {
        "https://models.example.org/v1": f"http://scripted.{MODELS_NAMESPACE}:{INSTANT_PORT}/v1",
        "org/model-name": "scripted",
        "      numRepeats: 2\n": f"      numRepeats: 2\n      startupTimeoutSeconds: {PATIENCE_SECONDS}\n",
        "{size: 1Gi}": "{size: 64Mi}",
        "my-model/api-key": f"{manifests.KEY_SECRET}/api-key",
        "--num-repeats 2": f"--num-repeats 2 --results 64Mi --startup-timeout {PATIENCE_SECONDS}s",
    }
    for theirs, replacement in ours.items():
        text = text.replace(theirs, replacement)
    return text


def _plain_environment() -> dict[str, bytes]:
    return _content(CAPITALS / "environment")


def _wheels_environment(folder: Path) -> dict[str, bytes]:
    """The page's second environment, with its wheel built, and with an env.yaml that must not be heeded."""
    shutil.copytree(CAPITALS / "wheels", folder)
    built = [str(Path(sys.executable).with_name("uv")), "build", "--wheel", "--no-create-gitignore", "--offline"]
    built += ["--python", sys.executable, "--out-dir", "environment/wheels", "library"]
    subprocess.run(built, cwd=folder, check=True, capture_output=True, timeout=120)
    return _content(folder / "environment") | {"env.yaml": ELSEWHERE.encode()}


def _content(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def digest_of(content: dict[str, bytes]) -> str:
    """Of a tree that holds these files."""
    return digest_of_sums({path: content_sum(data) for path, data in content.items()})


def _tar(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, data in content.items():
            entry = tarfile.TarInfo(f"top/{path}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _zip(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for path, data in content.items():
            opened.writestr(path, data)
    return buffer.getvalue()


def _put(server: S3Server, bucket: str, prefix: str, content: dict[str, bytes]) -> None:
    for path, data in content.items():
        file = server.bucket(bucket) / prefix / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _in_bucket(server: S3Server, where: Object) -> tuple[Object, Object]:
    """A source, and the Secret that holds its keys."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bucket", "namespace": GVISOR.jobs},
        "stringData": {"id": server.access_key_id, "key": server.secret_access_key},
    }
    credentials = {
        name: {"secretKeyRef": {"name": "bucket", "key": key}}
        for name, key in (("accessKeyId", "id"), ("secretAccessKey", "key"))
    }
    source = {"endpoint": server.endpoint, "bucket": "evaluations", "credentials": credentials}
    return {"s3": source | where}, secret


def _files_url() -> str:
    return f"http://files.{MODELS_NAMESPACE}:{INSTANT_PORT}"


def _ready(pod: str) -> None:
    waiting = ("--for=condition=Ready", f"--timeout={STATUS_SECONDS}s")
    cluster.kubectl("wait", f"pod/{pod}", f"--namespace={MODELS_NAMESPACE}", *waiting, timeout=STATUS_SECONDS + 30)


def _fill_claim(namespace: str, name: str, archive: bytes) -> None:
    """A claim that holds what is in the archive, put there by a pod of our own."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
    }
    filler = manifests.container("filler", reference("nhx-tasks"), args=["tar", "-xzf", "/files/a.tgz", "-C", "/claim"])
    filler["volumeMounts"] += [{"name": "claim", "mountPath": "/claim"}, {"name": "files", "mountPath": "/files"}]
    files = manifests.config_map(namespace, f"fill-{name}", {})
    files["binaryData"] = {"a.tgz": base64.b64encode(archive).decode()}
    volumes = [
        {"name": "claim", "persistentVolumeClaim": {"claimName": name}},
        {"name": "files", "configMap": {"name": f"fill-{name}"}},
    ]
    cluster.apply(claim, files, manifests.restricted_pod(namespace, f"fill-{name}", [filler], volumes))
    cluster.log_when_done(f"fill-{name}", namespace, seconds=STATUS_SECONDS)


def staging(world: World, job: Object, file_set: str) -> Staging:
    """Waits until a job's staging has ended, well or not, and until its FileSet says so."""
    namespace, name = runs.key_of(job)
    state = world.watch.until(namespace, name, _is_staged, what="the end of staging", timeout=2 * STATUS_SECONDS)
    deadline = time.monotonic() + STATUS_SECONDS
    while True:
        found = cluster.get("fileset", file_set, namespace)
        if (found.get("status") or {}).get("seenBy") or time.monotonic() > deadline:
            return Staging(state, found)
        time.sleep(0.5)


def _is_staged(state: Object) -> bool:
    entry = condition(state, "Staged")
    return bool(entry) and entry["reason"] != "Staging"
