"""The demo: the operator on a cluster, a small real model, two evaluations, and their rewards.

Every step says what it does and how long it may take. Run again, it deletes the two jobs of the last time; everything
else is applied over what is there. The cluster is the local one unless a context is named: what the environment points
kubectl at is never used by accident.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import diagnosis, packages, paths, report
from .beside import Beside
from .job_table import JobTable, Watch, aggregate_lines, follow
from .settings import IMAGE_TAG, LOCAL_REGISTRY

ROOT = Path(__file__).resolve().parents[1]
RELEASE = "nhx-gym-operator"
OPERATOR_NAMESPACE = "nhx-gym-operator"
MODEL = "demo-model"
MODEL_NAMESPACE = "demo-model"
JOB_NAMESPACE = "nhx-demo"
JOBS = ("mcqa", "wordcheck")

# The chart's defaults.
RUNTIME_CLASS = "gvisor"
PULL_POLICY = "IfNotPresent"

CALL_SECONDS = 60
ROLLOUT_SECONDS = 240
DELETE_SECONDS = 180
JOBS_SECONDS = 900
RESULTS_MEAN = """\
gym_reward.reward is on 0-1; what stands under runner.gym. is in the environment's own units.
For so small a model mcqa's answers are guesses, and 0.00-0.30 is normal; wordcheck is the one that shows something."""
_IMAGE_ANNOTATION = "evals.nhx.io/demo-image"


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("demo", help="run two evaluations with a small real model on the cluster")
    parser.add_argument("--context", help="a context of your kubeconfig, instead of the local cluster")
    parser.add_argument(
        "--registry", help="where that cluster pulls images from; they are pushed to it, e.g. HOST/PATH"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a value of the chart, for Helm"
    )


def run(arguments: argparse.Namespace) -> None:
    target = choose_target(arguments.context, arguments.registry)
    began = time.monotonic()
    steps = plan(target, arguments.set)
    for number, step in enumerate(steps, start=1):
        step.run(f"[{number}/{len(steps)}]")
    report.say(f"\nThe demo took {time.monotonic() - began:.0f} s.\n\n{next_commands(target)}")


@dataclass(frozen=True)
class Target:
    """The cluster, and how its kubectl and Helm are called."""

    local: bool
    context: str | None
    registry: str
    environment: dict[str, str]

    @property
    def pull_policy(self) -> str:
        """A tag that is pushed anew must not be taken from a node's cache."""
        return PULL_POLICY if self.local else "Always"

    def kubectl_command(self, *arguments: str) -> list[str]:
        flag = f"--kubeconfig={paths.kubeconfig()}" if self.local else f"--context={self.context}"
        return ["kubectl", flag, *arguments]

    def helm_command(self, *arguments: str) -> list[str]:
        flag = f"--kubeconfig={paths.kubeconfig()}" if self.local else f"--kube-context={self.context}"
        return ["helm", flag, *arguments]

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = CALL_SECONDS) -> str:
        return self._run(self.kubectl_command(*arguments), stdin, seconds)

    def helm(self, *arguments: str, seconds: float = CALL_SECONDS) -> str:
        return self._run(self.helm_command(*arguments), None, seconds)

    def get(self, *arguments: str) -> dict:
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def apply(self, *examples: Path, namespace: str | None = None) -> None:
        """Examples at once, with the images of the registry that the cluster pulls from."""
        where = [f"--namespace={namespace}"] if namespace else []
        text = "\n---\n".join(self._manifests(example) for example in examples)
        text = text.replace(f"{LOCAL_REGISTRY}/", f"{self.registry}/")
        text = text.replace(f"imagePullPolicy: {PULL_POLICY}", f"imagePullPolicy: {self.pull_policy}")
        self.kubectl("apply", *where, "--filename=-", stdin=text)

    def _manifests(self, example: Path) -> str:
        if (example / "kustomization.yaml").exists():
            return self.kubectl("kustomize", str(example))
        files = sorted(example.glob("*.yaml")) if example.is_dir() else [example]
        return "\n---\n".join(file.read_text() for file in files)

    def _run(self, command: list[str], stdin: str | None, seconds: float) -> str:
        words = " ".join([command[0], *(word for word in command[1:] if not word.startswith("--"))][:5])
        try:
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                env=self.environment,
            )
        except subprocess.TimeoutExpired:
            raise report.DevclusterError(
                f"`{words}` gave no answer in {seconds:.0f} s; is the cluster reachable?"
            ) from None
        if done.returncode:
            raise report.DevclusterError(f"`{words}` failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


@dataclass(frozen=True)
class Step:
    what: str
    estimate: str
    act: Callable[[], None]

    def run(self, label: str) -> None:
        report.say(f"\n{label} {self.what} ({self.estimate})")
        began = time.monotonic()
        try:
            self.act()
        except BaseException:
            report.say(f"{label} failed after {time.monotonic() - began:.1f} s")
            raise
        report.say(f"{label} done in {time.monotonic() - began:.1f} s")


def plan(target: Target, values: list[str]) -> list[Step]:
    """Estimates are for two cores."""
    cluster = Step(
        "start the local cluster, and build the images meanwhile",
        "seconds if they are built, 22 min the first time",
        _start_cluster,
    )
    theirs = Step(f"ask the cluster of context {target.context}", "1 s", lambda: _check_cluster(target, values))
    return [
        cluster if target.local else theirs,
        Step(
            "bring the images there" if target.local else "build the images and bring them there",
            f"seconds if unchanged, {'1' if target.local else '7'} min the first time",
            lambda: _bring_images(target),
        ),
        Step(
            f"install the operator, namespace {OPERATOR_NAMESPACE}", "10 s", lambda: _install_operator(target, values)
        ),
        Step(f"start SmolLM2-135M-Instruct, namespace {MODEL_NAMESPACE}", "5 s", lambda: _start_model(target)),
        Step(
            f"delete the jobs of an earlier demo, namespace {JOB_NAMESPACE}",
            "15 s if there are any",
            lambda: _delete_jobs(target),
        ),
        Step(
            f"run {' and '.join(JOBS)} at once", f"1 to 2 min, at most {JOBS_SECONDS // 60}", lambda: _run_jobs(target)
        ),
        Step("read the results", "1 s", lambda: _show_results(target)),
    ]


def choose_target(context: str | None, registry: str | None) -> Target:
    """Raises DevclusterError if a cluster is named without what it takes to run on it."""
    if context is None:
        if registry:
            raise report.DevclusterError(
                "a registry was given without a context. The local cluster needs no registry; "
                "name the context of the cluster that pulls from it: make demo CONTEXT=name REGISTRY=host/path"
            )
        # The links in it are made when the cluster starts.
        path = os.pathsep.join([str(paths.tools_dir()), os.environ.get("PATH", "")])
        surroundings = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        return Target(True, None, LOCAL_REGISTRY, {**surroundings, "PATH": path})
    if not registry:
        raise report.DevclusterError(
            f"the cluster of context {context} has to pull the images from somewhere: "
            f"make demo CONTEXT={context} REGISTRY=host/path (a registry that you may push to)"
        )
    for program in ("kubectl", "helm"):
        if not shutil.which(program):
            raise report.DevclusterError(f"{program} is not on PATH; the demo on a cluster of yours uses your own")
    return Target(False, context, registry.rstrip("/"), dict(os.environ))


def _devcluster(*arguments: str, environment: dict[str, str] | None = None) -> None:
    """Another command of this program, whose output is shown as it comes."""
    command = [sys.executable, "-m", "devcluster", *arguments]
    code = subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}).returncode
    if code:
        raise report.DevclusterError(f"`python3 -m devcluster {' '.join(arguments)}` failed; the reason stands above")


def _start_cluster() -> None:
    """`cluster.provide_programs_and_images`, and the cluster starts while the last image is still being built."""
    packages.install_missing()
    with Beside("images", "build") as images:
        _devcluster("up")
        images.show()


def _check_cluster(target: Target, values: list[str]) -> None:
    """What would fail only after the images are built and pushed."""
    report.say(target.kubectl("version").strip())
    chosen = any(value.startswith("sandbox.") for value in values)
    if not chosen and not target.kubectl("get", "runtimeclass", RUNTIME_CLASS, "--ignore-not-found").strip():
        raise report.DevclusterError(
            f"this cluster has no RuntimeClass {RUNTIME_CLASS}, and wordcheck's own code runs sandboxed or not at all. "
            f"If it has another one, add SET=sandbox.runtimeClassName=NAME; to let the demo's code share the nodes' "
            f"kernel, add SET=sandbox.isolation=ContainerOnly"
        )


def _bring_images(target: Target) -> None:
    if target.local:
        _devcluster("images", "load")
    else:
        _devcluster("images", "push", f"--tag={IMAGE_TAG}", environment={"REGISTRY": target.registry})


def _install_operator(target: Target, values: list[str]) -> None:
    namespaces = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [namespace(OPERATOR_NAMESPACE), namespace(JOB_NAMESPACE)],
    }
    target.kubectl("apply", "--filename=-", stdin=json.dumps(namespaces))
    target.helm(*helm_arguments(target, values), seconds=ROLLOUT_SECONDS)
    _roll_out(target, OPERATOR_NAMESPACE, RELEASE, "nhx-gym-operator")


def namespace(name: str) -> dict:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def helm_arguments(target: Target, values: list[str]) -> list[str]:
    ours = [f"image.registry={target.registry}", f"image.tag={IMAGE_TAG}", f"image.pullPolicy={target.pull_policy}"]
    chart = str(ROOT / "charts" / RELEASE)
    settings = [word for value in [*ours, *values] for word in ("--set", value)]
    return ["upgrade", "--install", RELEASE, chart, f"--namespace={OPERATOR_NAMESPACE}", *settings]


def _start_model(target: Target) -> None:
    target.apply(ROOT / "examples" / MODEL)
    _roll_out(target, MODEL_NAMESPACE, MODEL, MODEL)


def _roll_out(target: Target, where: str, deployment: str, image: str) -> None:
    """Waits until the Deployment runs the image as it was last built: its tag alone does not tell."""
    annotations = {"metadata": {"annotations": {_IMAGE_ANNOTATION: _image_id(image)}}}
    patch = json.dumps({"spec": {"template": annotations}})
    place = (f"--namespace={where}",)
    try:
        target.kubectl("patch", "deployment", deployment, *place, f"--patch={patch}")
        waiting = ("rollout", "status", f"deployment/{deployment}", *place, f"--timeout={ROLLOUT_SECONDS}s")
        target.kubectl(*waiting, seconds=ROLLOUT_SECONDS + CALL_SECONDS)
    except report.DevclusterError as error:
        raise report.DevclusterError(f"{error}\n{diagnosis.describe(target.kubectl, where)}") from None


def _image_id(name: str) -> str:
    from .images import building  # buildah is needed from here on, not to list the commands

    return building.storage().image_id(building.reference(name)) or ""


def _delete_jobs(target: Target) -> None:
    place = f"--namespace={JOB_NAMESPACE}"
    deleted = target.kubectl("delete", "agentevaljobs.evals.nhx.io", *JOBS, place, "--ignore-not-found", "--wait=false")
    if deleted.strip():
        report.say(deleted.strip())
    selector = "--selector=app.kubernetes.io/managed-by=nhx-gym-operator"
    # Children of the same names, and the claims with them, have to be gone before the jobs come again.
    report.wait_until(
        f"the pods and claims of the deleted jobs in {JOB_NAMESPACE} to vanish",
        lambda: not target.get("pods,persistentvolumeclaims", place, selector)["items"],
        DELETE_SECONDS,
        pause=1.0,
    )


def _run_jobs(target: Target) -> None:
    target.apply(ROOT / "examples/mcqa.yaml", ROOT / "examples/wordcheck", namespace=JOB_NAMESPACE)
    report.say(f"$ kubectl get aej --namespace {JOB_NAMESPACE} --watch")
    command = target.kubectl_command("get", "agentevaljobs.evals.nhx.io", f"--namespace={JOB_NAMESPACE}", "--watch")
    table = JobTable(JOBS)
    watch = Watch(command, target.environment)
    problem = follow(watch, table, JOBS_SECONDS, lambda: [name for name in JOBS if name not in _existing_jobs(target)])
    failed = [name for name in JOBS if table.phase(name) != "Succeeded"]
    if problem or failed:
        what = problem or f"{' and '.join(failed)} did not succeed"
        operator = diagnosis.describe(target.kubectl, OPERATOR_NAMESPACE)
        raise report.DevclusterError(
            f"{what}\n{diagnosis.describe(target.kubectl, JOB_NAMESPACE, jobs=True)}\n{operator}"
        )


def _existing_jobs(target: Target) -> list[str]:
    jobs = target.get("agentevaljobs.evals.nhx.io", f"--namespace={JOB_NAMESPACE}")["items"]
    return [job["metadata"]["name"] for job in jobs]


def _show_results(target: Target) -> None:
    jobs = target.get("agentevaljobs.evals.nhx.io", f"--namespace={JOB_NAMESPACE}")["items"]
    for job in jobs:
        if job["metadata"]["name"] in JOBS:
            report.say("\n" + "\n".join(result_lines(job)))
    report.say(f"\n{RESULTS_MEAN}")


def result_lines(job: dict) -> list[str]:
    status = job["status"]
    results, ran = status.get("results") or {}, status.get("ran") or {}
    lines = [
        f"{job['metadata']['name']}: {status['phase']}, {status.get('placement')}, coverage {status.get('coverage')}"
    ]
    lines += [f"  {line}" for line in aggregate_lines(status.get("aggregates") or [])]
    for model, usage in (status.get("usage") or {}).items():
        lines.append(f"  model {model}: {usage.get('calls', 0)} calls, {usage.get('totalTokens', 0)} tokens")
    if ran.get("hostKernel"):
        lines.append(f"  Gym ran on: {ran['hostKernel'].rpartition(' | ')[2]}")  # before it: dmesg's first line
    return [*lines, f"  bundle: {results.get('location')}, directory {results.get('path')}"]


def next_commands(target: Target) -> str:
    flag = "" if target.local else f" --context {target.context}"
    begin = (
        ['eval "$(python3 -m devcluster env)"', "kubectl, Helm and kubeconfig of this cluster"] if target.local else []
    )
    place = f"--namespace {JOB_NAMESPACE}{flag}"
    commands = [
        begin,
        [f"kubectl get aej {place}", "the jobs"],
        [f"kubectl explain aej.spec.target.gym{flag}", "every field"],
        # An older Python is not named by pip: it reports conflicting dependencies.
        [
            "python3.12 -m venv ~/.nhx && . ~/.nhx/bin/activate && pip install '.[cli]'",
            "the kubectl plugin for the next three; Python 3.12 or newer",
        ],
        [f"kubectl nhx results mcqa {place}", "all aggregates"],
        [f"kubectl nhx logs wordcheck {place}", "what evaluator and Gym wrote"],
        [f"kubectl nhx download wordcheck ./wordcheck-results {place}", "the bundle; open report.html in it"],
        ["make cluster-down", "stop the local cluster"] if target.local else [],
    ]
    commands = [command for command in commands if command]
    width = max(len(command) for command, _ in commands)
    return "Try next:\n" + "\n".join(f"  {command.ljust(width)}  # {what}" for command, what in commands)
