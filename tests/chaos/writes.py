"""How often the API server was asked to change what an operator changes, from its own metrics, over its restarts."""

from __future__ import annotations

import re
from collections import Counter

from support import cluster

_LINE = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# Of pods, only the operator's own creations: the kubelet patches and deletes them, the scheduler binds them.
_COUNTED = {
    "agentevaljobs": {"POST", "PUT", "PATCH", "APPLY"},
    "pods": {"POST"},
    "services": {"POST", "PUT", "PATCH", "APPLY"},
    "secrets": {"POST", "PUT", "PATCH", "APPLY"},
    "networkpolicies": {"POST", "PUT", "PATCH", "APPLY"},
    "persistentvolumeclaims": {"POST", "PATCH", "APPLY"},
}


class Writes:
    """`note` before the API server is killed and at the end; `close` a life of it."""

    def __init__(self) -> None:
        self._before: Counter[str] = Counter()
        self._start = _counted()
        self._now = self._start

    def note(self) -> None:
        self._now = _counted()

    def restarted(self) -> None:
        """What was noted last belongs to an API server that is gone; the next one counts from 0."""
        self._before = self.by_verb()
        self._start = self._now = Counter()

    def by_verb(self) -> Counter[str]:
        return self._before + (self._now - self._start)


def _counted() -> Counter[str]:
    found: Counter[str] = Counter()
    for line in cluster.kubectl("get", "--raw", "/metrics").splitlines():
        if match := _LINE.match(line):
            labels = dict(_LABEL.findall(match[1]))
            resource = labels.get("resource", "")
            own = (
                labels.get("subresource", "") in ("", "status")
                if resource == "agentevaljobs"
                else not labels.get("subresource")
            )
            if own and labels.get("verb") in _COUNTED.get(resource, ()):
                found[f"{labels['verb']} {resource}"] += int(float(match[2]))
    return found
