"""A cluster in memory, as small as an operator can be tried in: an API server with one namespace, watches that lag, a
kubelet, a quota and a clock.

The operator in it is the real one, from caches to writes; only what it talks to is made here. Nothing waits, so that a
test may live thousands of lives.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Coroutine
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.api.wire.endpoints import Progress
from nhx_gym_operator.api.wire.reports import NO_OUTCOME_EXIT_CODE, Outcome
from nhx_gym_operator.controller import podview
from nhx_gym_operator.controller.caches import KINDS, Kind
from nhx_gym_operator.controller.clock import format_time
from nhx_gym_operator.controller.kube import EVENTS, JOBS, PODS, SERVICES, ApiError, Resource, resource_of
from nhx_gym_operator.controller.reconciler import Key, Reconciler, Subject
from nhx_gym_operator.controller.settings import Installation
from nhx_gym_operator.workloads.workload import ApiAddresses
from support.controller_values import KEY, NOW, UID, ended, running, settings, spec, waiting

Object = dict[str, Any]

NAME, NAMESPACE = "mcqa", "team"
GRACE_SECONDS = 30
KILLED = 137
"""What a container that was killed exits with."""
QUOTA = "exceeded quota: pods, requested: pods=1, used: pods=4, limited: pods=4"


class WriteFault(StrEnum):
    KILLED = "killed before it"
    LOST = "never arrives"
    UNANSWERED = "carried out, and never answered"
    SERVER = "500"


class Killed(BaseException):
    """The operator's process is no more."""


class ApiServer:
    """What `KubeClient` offers, and what happens to objects besides. Every change is an event of its kind."""

    def __init__(self) -> None:
        self.now: datetime = NOW
        self.objects: dict[tuple[Resource, str], Object] = {}
        self.log: dict[Resource, list[tuple[str, Object]]] = {kind.resource: [] for kind in KINDS}
        self.writes: list[str] = []
        self.pods_made: Counter[str] = Counter()
        self.refuses_pods = False
        self.fault: WriteFault | None = None
        self._version = 100

    # As the operator sees it

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        if not resource.namespaced:
            # The RuntimeClass, and the job's namespace, which stays.
            return {"metadata": {"name": name}}
        return copy.deepcopy(self._found(resource, name))

    async def list(self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = "") -> Object:
        return {"items": [copy.deepcopy(obj) for (kind, _), obj in self.objects.items() if kind == resource]}

    async def create(self, manifest: Object) -> Object:
        resource, name = resource_of(manifest), manifest["metadata"]["name"]
        return self._write(f"create {resource.kind} {name}", lambda: self.make(resource, manifest))

    async def apply(self, manifest: Object) -> Object:
        resource, name = resource_of(manifest), manifest["metadata"]["name"]

        def applied() -> Object:
            live = self.objects.get((resource, name))
            return self.change(resource, name, **copy.deepcopy(manifest)) if live else self.make(resource, manifest)

        return self._write(f"apply {resource.kind} {name}", applied)

    async def patch_status(self, resource: Resource, namespace: str, name: str, patch: Object) -> Object:
        def patched() -> Object:
            live = self._found(resource, name)
            if live["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", name)
            return self.change(resource, name, status=_merged(live.get("status") or {}, patch["status"]))

        return self._write(f"status {name}", patched)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        def deleted() -> None:
            metadata = self._found(resource, name)["metadata"]
            if uid != metadata["uid"] or resource_version not in (None, metadata["resourceVersion"]):
                raise ApiError(409, "Conflict", name)
            self.remove(resource, name)

        self._write(f"delete {resource.kind} {name}", deleted)

    def _write(self, what: str, carry_out: Any) -> Any:
        fault, self.fault = self.fault, None
        if fault is WriteFault.KILLED:
            raise Killed
        self.writes.append(what)
        if fault is WriteFault.SERVER:
            raise ApiError(500, "InternalError", what)
        if fault is WriteFault.LOST:
            raise ApiError(0, "Unreachable", what)
        answer = copy.deepcopy(carry_out())
        if fault is WriteFault.UNANSWERED:
            raise ApiError(0, "Unreachable", what)
        return answer

    # As everybody else does

    def make(self, resource: Resource, manifest: Object) -> Object:
        name = manifest["metadata"]["name"]
        if (resource, name) in self.objects:
            raise ApiError(409, "AlreadyExists", name)
        if resource is PODS:
            if self.refuses_pods:
                raise ApiError(403, "Forbidden", QUOTA)
            self.pods_made[name] += 1
        self._version += 1
        live = copy.deepcopy(manifest)
        own = {"uid": f"uid-{self._version}", "creationTimestamp": format_time(self.now)}
        live["metadata"] = {**own, **live["metadata"], "resourceVersion": str(self._version)}
        if resource is SERVICES:
            live["spec"] = {"clusterIP": f"10.96.0.{self._version % 250}", **live["spec"]}
        if resource is not EVENTS:
            self.objects[resource, name] = live
        self._tell(resource, "ADDED", live)
        owners = live["metadata"].get("ownerReferences") or ()
        if any(self._is_gone(owner["uid"]) for owner in owners):
            # The garbage collector.
            self.remove(resource, name)
        return live

    def change(self, resource: Resource, name: str, **fields: Any) -> Object:
        live = copy.deepcopy(self._found(resource, name))
        for field, value in fields.items():
            live[field] = {**live["metadata"], **value} if field == "metadata" else value
            if field == "spec" and resource is SERVICES:
                live[field] = {"clusterIP": self._found(resource, name)["spec"]["clusterIP"], **value}
        self._version += 1
        live["metadata"]["resourceVersion"] = str(self._version)
        self.objects[resource, name] = live
        self._tell(resource, "MODIFIED", live)
        return live

    def remove(self, resource: Resource, name: str, *, at_once: bool = False) -> None:
        """A pod with a node has its grace, and a job its finalizers."""
        live = self._found(resource, name)
        metadata = live["metadata"]
        held = metadata.get("finalizers") or (resource is PODS and live["spec"].get("nodeName"))
        if held and not at_once:
            if "deletionTimestamp" not in metadata:
                grace = GRACE_SECONDS if resource is PODS else 0
                until = format_time(self.now + timedelta(seconds=grace))
                self.change(resource, name, metadata={"deletionTimestamp": until})
            return
        self._version += 1
        del self.objects[resource, name]
        live["metadata"] = {**metadata, "resourceVersion": str(self._version)}
        self._tell(resource, "DELETED", live)
        if resource is JOBS:
            for kind, child in list(self.objects):
                self.remove(kind, child)

    def _is_gone(self, owner: str) -> bool:
        return all(obj["metadata"]["uid"] != owner for (kind, _), obj in self.objects.items() if kind is JOBS)

    def _tell(self, resource: Resource, event: str, obj: Object) -> None:
        if resource in self.log and resource is not EVENTS:
            self.log[resource].append((event, copy.deepcopy(obj)))

    def _found(self, resource: Resource, name: str) -> Object:
        if (resource, name) not in self.objects:
            raise ApiError(404, "NotFound", name)
        return self.objects[resource, name]


class SmallWorld:
    """One job, the operator that looks after it, and all that may happen to both."""

    def __init__(
        self, job_spec: Object, metadata: Object | None = None, *, restarts: bool = True, **changes: Any
    ) -> None:
        """`restarts`: whether the API server takes pods of which one container is started again."""
        self.api = ApiServer()
        api = ApiAddresses(("10.96.0.1", 443))
        self._installation = Installation(settings(**changes), KEY, api, restarts=restarts)
        job = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": UID, "generation": 1, **(metadata or {})},
            "spec": spec(**job_spec),
        }
        self.api.make(JOBS, job)
        self.started: set[str] = set()
        """Evaluator pods whose main container has run."""
        self.stuck: set[str] = set()
        """Pods whose own sandbox is gone: nothing in them starts again, and nobody says so."""
        self.restart()

    # The operator

    def restart(self) -> None:
        """A new process: it knows what lists tell it, and nothing of before."""
        self.operator = Reconciler(self._installation, self.api, now=lambda: self.api.now)  # type: ignore[arg-type]
        self._read: dict[Resource, int] = {}
        for kind in KINDS:
            self.relist(kind)

    def relist(self, kind: Kind) -> None:
        """As after a watch that was lost: a list, and from there on the watch."""
        self._read[kind.resource] = len(self.api.log[kind.resource])
        _now(self.operator.caches._verify(self.api, kind))  # type: ignore[arg-type]

    def lags(self) -> list[Kind]:
        """Kinds of which a watch event is on its way."""
        return [kind for kind in KINDS if self._read[kind.resource] < len(self.api.log[kind.resource])]

    def deliver(self, kind: Kind) -> None:
        """The next event of a kind; those of another one may come before or after."""
        event, obj = self.api.log[kind.resource][self._read[kind.resource]]
        self._read[kind.resource] += 1
        self.operator.caches.handle(kind.resource, event, copy.deepcopy(obj))

    def deliver_all(self) -> None:
        for kind in self.lags():
            while kind in self.lags():
                self.deliver(kind)

    def look(self) -> float | None:
        """One pass. Seconds until the next one, if it is to come by itself; 0 after a failure, as in the queue."""
        try:
            return _now(self.operator._reconcile(Key(Subject.JOB, UID)))
        except Killed:
            self.restart()
        except ApiError:
            pass
        return 0.0

    def progress(self, progress: Progress) -> None:
        """What the evaluator's pod answers to this process."""
        poller = self.operator._poller
        poller._answers[UID] = progress
        lives = (podview.life(pod, _main(pod)) for pod in self.alive() if podview.is_evaluator(pod))
        poller._lives[UID] = next(lives, "")

    # What there is

    @property
    def job(self) -> Object | None:
        return self.api.objects.get((JOBS, NAME))

    @property
    def status(self) -> Object:
        return (self.job or {}).get("status") or {}

    def condition(self, kind: str) -> Object | None:
        return next((entry for entry in self.status.get("conditions", ()) if entry["type"] == kind), None)

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found["status"] == "True"

    @property
    def is_over(self) -> bool:
        return self.job is None or self.is_true("Complete") or self.is_true("Failed")

    @property
    def pods(self) -> list[Object]:
        return [obj for (kind, _), obj in sorted(self.api.objects.items(), key=str) if kind is PODS]

    def alive(self) -> list[Object]:
        return [pod for pod in self.pods if not podview.has_ended(pod)]

    # Scheduler and kubelet

    def bind(self, name: str) -> None:
        pod = self.api.objects[PODS, name]
        self.api.change(PODS, name, spec={**pod["spec"], "nodeName": "node"})

    def run(self, name: str) -> None:
        pod = self.api.objects[PODS, name]
        if podview.is_evaluator(pod):
            self.started.add(name)
        self._report(pod, "Running", running())

    def end(self, name: str, outcome: Outcome | None, code: int = 1) -> None:
        """A pod ends; an evaluator with its outcome, or without one. What reads one that was left finds none."""
        pod = self.api.objects[PODS, name]
        if self.is_between_lives(pod):
            if podview.is_terminating(pod):
                # As it lies: nothing is started in a pod that was told to end.
                self._report(pod, "Failed", _shown(pod)["state"])
                return
            self.start_again(name)
        if podview.is_reader(pod):
            outcome, code = None, NO_OUTCOME_EXIT_CODE
        good = outcome is not None and outcome.state == "Complete"
        message = encode_outcome(outcome).decode() if outcome else ""
        at = format_time(self.api.now)
        phase = "Succeeded" if good or code == 0 else "Failed"
        self._report(self.api.objects[PODS, name], phase, ended(0 if good else code, message, at))

    def kill(self, name: str, said: Outcome, *, backs_off: bool = False) -> None:
        """A pod's container ends by a signal, with what it had said while it ran as its message. Whether that is the
        pod's end too is for the pod's own rules to say; if not, its next start may have to wait (`backs_off`)."""
        state = ended(KILLED, encode_outcome(said).decode(), format_time(self.api.now), reason="OOMKilled")
        pod = self.api.objects[PODS, name]
        if not self._starts_again(pod):
            self._report(pod, "Failed", state)
        elif backs_off:
            self._report(pod, "Running", waiting("CrashLoopBackOff"), lastState=state)
        else:
            self._report(pod, "Running", state)

    def is_between_lives(self, pod: Object) -> bool:
        """Whether its container has ended, and the pod has not."""
        return podview.phase(pod) == "Running" and "running" not in _shown(pod)["state"]

    def start_again(self, name: str) -> None:
        """As often as it takes: the kubelet knows no bound but its pauses."""
        pod = self.api.objects[PODS, name]
        shown = _shown(pod)
        before = shown["state"] if "terminated" in shown["state"] else shown["lastState"]
        self._report(pod, "Running", running(), lastState=before, restartCount=shown.get("restartCount", 0) + 1)

    @staticmethod
    def _starts_again(pod: Object) -> bool:
        rules = pod["spec"]["containers"][0].get("restartPolicyRules") or ()
        wanted = any(KILLED not in rule["exitCodes"]["values"] for rule in rules)
        return wanted and not podview.is_terminating(pod)

    def evict(self, name: str) -> None:
        why = {"reason": "Evicted", "message": "the node was low on memory"}
        self.api.change(PODS, name, status={"phase": "Failed", "containerStatuses": [], **why})

    def vanish(self, name: str) -> None:
        """Its node is gone, or the kubelet has ended it and says so."""
        self.api.remove(PODS, name, at_once=True)

    def _report(self, pod: Object, phase: str, state: Object, **more: Any) -> None:
        """What the kubelet says of the pod and its main container. What it said before of earlier ends stays."""
        shown = {**_shown(pod), "name": _main(pod), "state": state, "imageID": f"x@sha256:{'0' * 64}", **more}
        self.api.change(PODS, podview.name(pod), status={"phase": phase, "containerStatuses": [shown]})


def _main(pod: Object) -> str:
    return pod["spec"]["containers"][0]["name"]  # type: ignore[no-any-return]


def _shown(pod: Object) -> Object:
    """What the kubelet says of the main container; nothing before it has run."""
    return next(iter((pod.get("status") or {}).get("containerStatuses") or ()), {"state": {}})


def _now[Answer](coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of what never waits here."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


def _merged(old: Object, patch: Object) -> Object:
    """RFC 7386."""
    merged = {key: value for key, value in old.items() if patch.get(key, value) is not None}
    for key, value in patch.items():
        if isinstance(value, dict):
            before = old.get(key)
            merged[key] = _merged(before if isinstance(before, dict) else {}, value)
        elif value is not None:
            merged[key] = value
    return merged
