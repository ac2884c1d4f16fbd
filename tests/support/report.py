"""What a failed wait shows: the job as it stands, its pods, events and last log lines."""

from __future__ import annotations

import yaml

from support import cluster
from support.cluster import CommandError, Object

LOG_LINES = 25
_SHOWN_EVENTS = 20


def describe(namespace: str, name: str) -> str:
    """Never raises: it is called when something is broken already."""
    parts = [
        _tried("job", lambda: _job(namespace, name)),
        _tried("pods", lambda: _pods(namespace, name)),
        _tried("events", lambda: _events(namespace)),
        _tried("operator", _operators),
    ]
    return "\n".join(parts)


def pods_of(namespace: str, uid: str) -> list[Object]:
    return cluster.listed("pods", namespace, {"evals.nhx.io/job-uid": uid})


def _tried(title: str, read) -> str:
    try:
        return f"--- {title}\n{read()}"
    except (CommandError, KeyError, ValueError, OSError) as error:
        return f"--- {title}: cannot be read: {error}"


def _job(namespace: str, name: str) -> str:
    job = cluster.find("aej", name, namespace)
    return yaml.safe_dump(job.get("status", {}), sort_keys=False) if job else "it does not exist"


def _pods(namespace: str, name: str) -> str:
    job = cluster.find("aej", name, namespace)
    if job is None:
        return ""
    return "\n".join(_pod(pod) for pod in pods_of(namespace, job["metadata"]["uid"]))


def _pod(pod: Object) -> str:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    status = pod.get("status", {})
    lines = [f"{name}: {status.get('phase')} {status.get('reason', '')} {status.get('message', '')}"]
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        lines.append(f"  {container['name']}: {container['state']}")
        try:
            log = cluster.kubectl(
                "logs", name, f"--container={container['name']}", f"--namespace={namespace}", f"--tail={LOG_LINES}"
            )
        except CommandError as error:
            log = str(error)
        lines += [f"    | {line}" for line in log.splitlines()]
    return "\n".join(lines)


def _events(namespace: str) -> str:
    table = cluster.kubectl("get", "events", f"--namespace={namespace}", "--sort-by=.lastTimestamp")
    return "\n".join(table.splitlines()[-_SHOWN_EVENTS:])


def _operators() -> str:
    logs = []
    for pod in cluster.listed("pods", None, {"app.kubernetes.io/name": "nhx-gym-operator"}):
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        logs.append(f"{namespace}/{name}")
        logs.append(cluster.kubectl("logs", name, f"--namespace={namespace}", f"--tail={LOG_LINES}"))
    return "\n".join(logs)
