"""Every state a job was seen in, from one `kubectl get --watch` over all namespaces.

Waiting on a stream costs nothing between changes, and what flew by between two looks is still there to be asserted.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

from nhx_gym_operator.api import deep_json
from support import cluster
from support.cluster import Object
from support.report import describe

_RESTART_SECONDS = 0.5


class JobWatch:
    """Start it once the CRD exists; `close` ends its kubectl."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], list[Object]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._follow, name="job-watch", daemon=True)
        self._thread.start()

    def history(self, namespace: str, name: str) -> list[Object]:
        """The states of the object that bears the name now or bore it last, in order."""
        with self._changed:
            return list(self._states.get((namespace, name), []))

    def until(self, namespace: str, name: str, holds: Callable[[Object], bool], *, what: str, timeout: float) -> Object:
        """The first state in which `holds` is true, seen already or within `timeout` seconds.

        Fails with everything that is known about the job; at once if the job has ended and can't get there any more.
        """
        deadline = time.monotonic() + timeout
        seen = 0
        with self._changed:
            while True:
                states = self._states.get((namespace, name), [])
                for state in states[min(seen, len(states)) :]:
                    if holds(state):
                        return state
                seen = len(states)
                if states and ended(states[-1]):
                    problem = f"it ended before: {what}"
                    break
                if self._closed:
                    problem = f"the session ended before: {what}"
                    break
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    problem = f"not within {timeout:.0f} s: {what}"
                    break
        raise AssertionError(f"job {namespace}/{name}: {problem}\n{describe(namespace, name)}")

    def finished(self, namespace: str, name: str, *, timeout: float) -> Object:
        """The job when it has succeeded or failed."""
        return self.until(namespace, name, ended, what="succeeded or failed", timeout=timeout)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            process = self._process
        if process:
            process.terminate()
        self._thread.join(timeout=10)

    def _follow(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                self._process = subprocess.Popen(
                    ["kubectl", "get", "aej", "--all-namespaces", "--watch", "--output-watch-events", "--output=json"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=cluster.environment(),
                )
                process = self._process
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith("\n"):  # the last one may be cut short
                    self._record(deep_json.loads(line))
            process.wait()
            time.sleep(_RESTART_SECONDS)

    def _record(self, event: Object) -> None:
        job = event["object"]
        metadata = job.get("metadata", {})
        if job.get("kind") != "AgentEvalJob" or event["type"] == "DELETED":
            return
        with self._changed:
            states = self._states.setdefault((metadata["namespace"], metadata["name"]), [])
            if states and states[-1]["metadata"]["uid"] != metadata["uid"]:
                states.clear()
            if not states or states[-1]["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
                states.append(job)
            self._changed.notify_all()


def ended(job: Object) -> bool:
    return phase(job) in ("Succeeded", "Failed", "Cancelled")


def phase(job: Object) -> str:
    return job.get("status", {}).get("phase", "")


def condition(job: Object, type_: str) -> Object:
    """The condition of that type, or an empty one."""
    conditions = job.get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == type_), {})


def is_true(job: Object, type_: str) -> bool:
    return condition(job, type_).get("status") == "True"
