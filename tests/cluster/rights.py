"""The operator of these tests has the rights that the chart gives it, and the API server notes each call it refuses."""

from __future__ import annotations

import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cluster.control_plane import OPERATOR, TOKEN, audit_log
from nhx_gym_operator.controller.settings import Settings
from support.chart import CHART, KUBE_VERSION, helm

Object = dict[str, Any]

GROUP = "rbac.authorization.k8s.io"
_JOBS, _OPERATORS = "namespace-of-jobs", "namespace-of-operators"
_ALLOWED_BY = re.compile(r'^RBAC: allowed by .* of (?:Cluster)?Role "([^"]+)"')
WAIT_SECONDS = 30.0
"""Until the API server's authorizer has heard of a new role."""


@cache
def _rendered(everywhere: bool, measures: bool, elects: bool) -> str:
    values = {
        "fullnameOverride": "op",
        "watchNamespaces": [] if everywhere else [_JOBS],
        "canary": {"enabled": measures},
        "leaderElection": {"enabled": elects},
        "rbac": {"userRoles": False},
    }
    done = helm("template", "op", str(CHART), KUBE_VERSION, f"--namespace={_OPERATORS}", values=values)
    assert done.returncode == 0, done.stderr
    found = [obj for obj in yaml.safe_load_all(done.stdout) if obj and obj["apiVersion"].startswith(GROUP)]
    for obj in found:
        if "subjects" in obj:
            obj["subjects"] = [{"kind": "User", "name": OPERATOR, "apiGroup": GROUP}]
    return json.dumps(found)


class Right(NamedTuple):
    role: str
    """Whether the jobs' one is bound in a namespace or everywhere is all the same."""
    resource: str
    """Group and plural, as `networking.k8s.io/networkpolicies`; with a subresource."""
    verb: str


def given() -> set[Right]:
    """All that the chart gives an operator."""
    return {
        Right(_role(role["metadata"]["name"]), f"{group}/{resource}", verb)
        for role in json.loads(_rendered(everywhere=True, measures=True, elects=True))
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _rights_behind(entry: Object) -> Iterator[Right]:
    """What the authorizer says that it let a call pass by."""
    by = _ALLOWED_BY.search(entry.get("annotations", {}).get("authorization.k8s.io/reason", ""))
    of = entry.get("objectRef")
    if by and of:
        resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
        right = Right(_role(by[1]), f"{of.get('apiGroup', '')}/{resource}", entry["verb"])
        yield right
        # To make an object by a patch takes the right to create it too.
        if right.verb == "patch" and entry.get("responseStatus", {}).get("code") == HTTPStatus.CREATED:
            yield right._replace(verb="create")


def _role(name: str) -> str:
    return next((kind for kind in ("canary", "lease") if name.endswith(f"-{kind}")), "jobs")


class Rights:
    """What the operator may do in one API server."""

    def __init__(self, kubeconfig: Path) -> None:
        self._server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        self._log = audit_log(kubeconfig)

    def grant(self, settings: Settings) -> list[Object]:
        """The chart's roles for an operator with these settings. They hold when this returns."""
        jobs, canary, lease = settings.watch_namespaces, settings.canary, settings.lease
        # Without canaries and Lease that name is part of a cluster-wide role's, and of nothing else.
        own = next((found.namespace for found in (canary, lease) if found), None) or next(iter(jobs), "everywhere")
        text = _rendered(not jobs, canary is not None, lease is not None).replace(_OPERATORS, own)
        found = [obj for name in jobs or [_JOBS] for obj in json.loads(text.replace(_JOBS, name))]
        for obj in found:
            self._request("POST", _path(obj), obj, besides=409)
        for role in found:
            if "rules" in role:
                self._wait_for(role)
        return found

    def withdraw(self, objects: list[Object]) -> None:
        for obj in objects:
            self._request("DELETE", f"{_path(obj)}/{obj['metadata']['name']}", None, besides=404)

    def mark(self) -> int:
        """Where the record of calls ends now."""
        return self._log.stat().st_size if self._log.exists() else 0

    def refused(self, since: int) -> list[str]:
        """Calls that the operator made after that mark and had no right to."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as log:
            log.seek(since)
            entries = [json.loads(line) for line in log.read().splitlines()]
        return [
            f"{entry['verb']} {entry['requestURI']}"
            for entry in entries
            if entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        ]

    def used(self) -> set[Right]:
        """Those by which the operator made its calls so far."""
        if not self._log.exists():
            return set()
        return {right for line in self._log.read_text().splitlines() for right in _rights_behind(json.loads(line))}

    def _wait_for(self, role: Object) -> None:
        rule = role["rules"][0]
        asked = {
            "namespace": role["metadata"].get("namespace", ""),
            "group": rule["apiGroups"][0],
            "resource": rule["resources"][0],
            "verb": rule["verbs"][0],
            "name": rule.get("resourceNames", [""])[0],
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": OPERATOR, "resourceAttributes": asked},
        }
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            answer = self._request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
            if answer["status"].get("allowed"):
                return
            time.sleep(0.05)
        raise AssertionError(f"role {role['metadata']['name']} does not hold after {WAIT_SECONDS:g} s: {asked}")

    def _request(self, method: str, path: str, body: Object | None, *, besides: int = 0) -> Object:
        """The answer; empty if it is of the status `besides`."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self._server + path, data=data, headers=headers, method=method)
        handlers = (
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl._create_unverified_context()),
        )
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != besides:
                raise AssertionError(f"{method} {path}: {error.read().decode()}") from error
            return {}


def _path(obj: Object) -> str:
    namespace = obj["metadata"].get("namespace")
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/v1{where}/{obj['kind'].lower()}s"
