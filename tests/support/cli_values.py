"""Values that the plugin's tests are made of: a call of `kubectl nhx`, a job and its pods as they are stored."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner, Result

from nhx_gym_operator.api import constants
from nhx_gym_operator.cli.main import app

Object = dict[str, Any]

UID = "4f2c"
CREATED = "2026-01-01T00:00:00Z"
CLAIM = {"location": "persistentVolumeClaim/mcqa-results", "path": "attempt-1"}


def call(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


# A program that was itself started in the background is told to ignore Ctrl-C, and so would be all that it starts.
_PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from nhx_gym_operator.cli.main import main
main()
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    """The plugin as a program, in a process group of its own, as a shell starts one: what `os.killpg` sends it reaches
    all that it has started in that group, as a terminal's Ctrl-C does."""
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    """Python may be long in starting on a busy machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def job(name: str = "mcqa", spec: Object | None = None, **status: Any) -> Object:
    """A job that has succeeded, apart from `status`."""
    status = {"phase": "Succeeded", "attempt": 1, "results": CLAIM, **status}
    metadata = {"name": name, "namespace": "evals", "uid": UID, "creationTimestamp": CREATED}
    return {"metadata": metadata, "spec": SPEC | (spec or {}), "status": status}


def condition(kind: str, holds: bool, reason: str, message: str = "") -> Object:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": CREATED,
    }


SPEC: Object = {
    "tasks": {"dataset": {"bundled": "resources_servers/mcqa/data/example.jsonl"}},
    "target": {"gym": {"agent": "simple_agent", "resourcesServer": "mcqa"}},
    "models": [
        {
            "name": "policy",
            "baseUrl": "https://models.example.org/v1",
            "model": "org/name",
            "apiKey": {"secretKeyRef": {"name": "my-model", "key": "api-key"}},
        }
    ],
}


def pod(name, role, containers, init=(), attempt=1, states=None, **spec):
    states = states or {}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}

    def statuses(entries):
        return [{"name": entry, "state": states.get(entry, ended)} for entry in entries]

    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "creationTimestamp": CREATED,
            "labels": {
                constants.JOB_UID_LABEL: UID,
                constants.ROLE_LABEL: role,
                constants.ATTEMPT_LABEL: str(attempt),
            },
        },
        "spec": {
            "initContainers": [{"name": entry, "image": "tasks:1"} for entry in init],
            "containers": [{"name": entry, "image": "tasks:1", "imagePullPolicy": "Never"} for entry in containers],
            **spec,
        },
        "status": {"initContainerStatuses": statuses(init), "containerStatuses": statuses(containers)},
    }


def evaluator(**options):
    return pod("mcqa-evaluator-1", "evaluator", ["agent-evaluate"], **options)


def host(**options):
    return pod("mcqa-host-0-1", "gym-host", ["gym-host"], init=["sandbox-gate"], **options)
