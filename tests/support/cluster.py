"""The dev cluster, as a test sees it: its own kubectl, helm and kubeconfig, whatever the surroundings offer."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nhx_gym_operator.api import deep_json

ROOT = Path(__file__).resolve().parents[2]
CALL_TIMEOUT_SECONDS = 60.0
"""A call that answers at once. On two busy cores kubectl alone can take seconds."""

type Object = dict[str, Any]
"""A Kubernetes object as the API server prints it."""


class CommandError(AssertionError):
    """A command ended with an error. `stderr` holds its words, `code` what it ended with, if it did."""

    def __init__(self, command: list[str], stderr: str, code: int | None = None):
        self.stderr = stderr.strip()
        self.code = code
        super().__init__(f"{' '.join(command[:8])}: {self.stderr}")


@functools.cache
def environment() -> dict[str, str]:
    """The variables that `python3 -m devcluster env` sets, over ours. Fails if the cluster is not up."""
    clean = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    script = 'settings=$(python3 -m devcluster env) && eval "$settings" && env -0'
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=clean, capture_output=True, timeout=CALL_TIMEOUT_SECONDS
    )
    if done.returncode:
        raise CommandError(["python3 -m devcluster env"], done.stderr.decode())
    settings = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if "=" in entry)
    if not Path(settings.get("KUBECONFIG", "")).is_file():
        raise CommandError(["python3 -m devcluster env"], "it names no kubeconfig; is the cluster up? (make cluster)")
    return settings


def run(
    command: list[str],
    *,
    stdin: str | None = None,
    timeout: float = CALL_TIMEOUT_SECONDS,
    extra: dict[str, str] | None = None,
) -> str:
    """Standard output of a command in the cluster's environment. Raises CommandError if it fails."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            cwd=ROOT,
            env=environment() | (extra or {}),
        )
    except subprocess.TimeoutExpired:
        raise CommandError(command, f"no answer in {timeout:.0f} s") from None
    if done.returncode:
        raise CommandError(command, done.stderr or done.stdout, done.returncode)
    return done.stdout


def kubectl(*arguments: str, stdin: str | None = None, timeout: float = CALL_TIMEOUT_SECONDS) -> str:
    return run(["kubectl", *arguments], stdin=stdin, timeout=timeout)


def helm(*arguments: str, stdin: str | None = None, timeout: float = CALL_TIMEOUT_SECONDS) -> str:
    return run(["helm", *arguments], stdin=stdin, timeout=timeout)


def apply(*objects: Object) -> None:
    """`kubectl apply`, objects in their order."""
    kubectl("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def create(object_: Object) -> None:
    """`kubectl create`, which keeps nulls: `kubectl apply` leaves them out of maps."""
    kubectl("create", "--filename=-", stdin=json.dumps(object_))


def get(kind: str, name: str, namespace: str | None = None) -> Object:
    return deep_json.loads(kubectl("get", kind, name, *_in(namespace), "--output=json"))


def find(kind: str, name: str, namespace: str | None = None) -> Object | None:
    """The object, or None if there is none of that name."""
    text = kubectl("get", kind, name, *_in(namespace), "--output=json", "--ignore-not-found")
    return deep_json.loads(text) if text.strip() else None


def listed(kinds: str, namespace: str | None = None, selector: dict[str, str] | None = None) -> list[Object]:
    """Objects of one kind or several (`pods,services`). Without a namespace: of all."""
    chosen = [f"--selector={','.join(f'{key}={value}' for key, value in selector.items())}"] if selector else []
    return deep_json.loads(kubectl("get", kinds, *(_in(namespace) or ["--all-namespaces"]), *chosen, "--output=json"))[
        "items"
    ]


def delete(kind: str, name: str, namespace: str | None = None, *, wait: bool = True, timeout: float = 120.0) -> None:
    """Deletes what is there; with `wait`, returns when it is gone."""
    waiting = f"--wait={str(wait).lower()}"
    kubectl("delete", kind, name, *_in(namespace), "--ignore-not-found", waiting, timeout=timeout)


def log_when_done(pod: str, namespace: str, *, seconds: float) -> str:
    """The log of a pod's one container when it has ended, well or not."""
    ended = "--for=jsonpath={.status.containerStatuses[0].state.terminated}"
    try:
        kubectl("wait", f"pod/{pod}", *_in(namespace), ended, f"--timeout={seconds:.0f}s", timeout=seconds + 30)
    except CommandError as error:
        raise AssertionError(f"{error}\n{kubectl('describe', 'pod', pod, *_in(namespace))}") from None
    return kubectl("logs", pod, *_in(namespace))


def working_sets(namespace: str) -> dict[str, int]:
    """Bytes of memory by container name, from the kubelet."""
    summary = json.loads(kubectl("get", "--raw", "/api/v1/nodes/node/proxy/stats/summary"))
    return {
        container["name"]: container["memory"].get("workingSetBytes", 0)
        for pod in summary["pods"]
        if pod["podRef"]["namespace"] == namespace
        for container in pod.get("containers", [])
        if "memory" in container
    }


@dataclass(frozen=True)
class Executed:
    """What a command inside a container said."""

    code: int
    stdout: str
    stderr: str


def execute(pod: str, container: str, namespace: str, command: list[str], *, stdin: str = "") -> Executed:
    """`kubectl exec`. A command's own failure is an answer, not an error."""
    words = ["kubectl", "exec", "--stdin", pod, *_in(namespace), f"--container={container}", "--", *command]
    done = subprocess.run(
        words,
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=CALL_TIMEOUT_SECONDS,
        env=environment(),
    )
    return Executed(done.returncode, done.stdout, done.stderr)


def _in(namespace: str | None) -> list[str]:
    return [f"--namespace={namespace}"] if namespace else []
