"""What a person needs to see when something did not come up: conditions, pods, events, last log lines."""

import json
from collections.abc import Callable

LOG_LINES = 15
EVENT_LINES = 12

Kubectl = Callable[..., str]


def describe(kubectl: Kubectl, namespace: str, jobs: bool = False) -> str:
    """Never raises: it is called when something is broken already."""
    parts = [_tried(f"jobs in {namespace}", lambda: _jobs(kubectl, namespace))] if jobs else []
    parts.append(_tried(f"pods in {namespace}", lambda: _pods(kubectl, namespace)))
    parts.append(_tried(f"last events in {namespace}", lambda: _events(kubectl, namespace)))
    return "\n".join(parts)


def job_lines(job: dict) -> list[str]:
    """Name and phase of a job, then its conditions, the newest last."""
    status = job.get("status") or {}
    conditions = sorted(status.get("conditions") or [], key=lambda condition: condition.get("lastTransitionTime") or "")
    lines = [f"{job['metadata']['name']}: {status.get('phase') or 'no phase yet'}"]
    return lines + [f"  {c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}" for c in conditions]


def pod_lines(pod: dict) -> list[str]:
    """Name and phase of a pod, then the state of each of its containers."""
    status = pod.get("status") or {}
    unscheduled = [c.get("message", "") for c in status.get("conditions") or [] if c.get("reason") == "Unschedulable"]
    said = [status.get("phase") or "", status.get("reason") or "", status.get("message") or "", *unscheduled]
    lines = [f"{pod['metadata']['name']}: {' '.join(part for part in said if part)}"]
    return lines + [f"  {name}: {_state(state)}" for name, state in _containers(pod)]


def _tried(title: str, read: Callable[[], str]) -> str:
    try:
        return f"--- {title}\n{read()}"
    except Exception as error:  # whatever went wrong, the other parts are still wanted
        return f"--- {title}: cannot be read: {error}"


def _jobs(kubectl: Kubectl, namespace: str) -> str:
    jobs = json.loads(kubectl("get", "agentevaljobs.evals.nhx.io", f"--namespace={namespace}", "--output=json"))[
        "items"
    ]
    return "\n".join(line for job in jobs for line in job_lines(job)) or "none"


def _pods(kubectl: Kubectl, namespace: str) -> str:
    pods = json.loads(kubectl("get", "pods", f"--namespace={namespace}", "--output=json"))["items"]
    lines = []
    for pod in pods:
        lines += pod_lines(pod)
        for container, state in _containers(pod):
            if "running" in state or "terminated" in state:
                lines += _log(kubectl, namespace, pod["metadata"]["name"], container)
    return "\n".join(lines) or "none"


def _log(kubectl: Kubectl, namespace: str, pod: str, container: str) -> list[str]:
    where = (f"--namespace={namespace}", f"--container={container}", f"--tail={LOG_LINES}")
    try:
        text = kubectl("logs", pod, *where)
    except Exception as error:  # a log that is gone must not hide the others
        text = str(error)
    return [f"    {container} | {line}" for line in text.splitlines()]


def _events(kubectl: Kubectl, namespace: str) -> str:
    text = kubectl("get", "events", f"--namespace={namespace}", "--sort-by=.lastTimestamp")
    return "\n".join(text.splitlines()[-EVENT_LINES:])


def _containers(pod: dict) -> list[tuple[str, dict]]:
    status = pod.get("status") or {}
    entries = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [(entry["name"], entry.get("state") or {}) for entry in entries]


def _state(state: dict) -> str:
    for kind in ("running", "terminated", "waiting"):
        if kind in state:
            detail = state[kind] or {}
            code = f"exit code {detail['exitCode']}" if "exitCode" in detail else ""
            # A termination message may be a whole outcome in JSON; its beginning is enough here.
            said = [kind, code, detail.get("reason") or "", (detail.get("message") or "")[:200]]
            return " ".join(part for part in said if part)
    return "no state yet"
