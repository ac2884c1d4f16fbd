"""One job's life in steps, with a fault at the write that a test chooses.

The operator is a `Reconciler` on lists in place of watches, driven until it has nothing more to do; what the kubelet
and the user do comes in between. Its clock can be put forward. So a life is the same each time, and no wait is waited
out.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from cluster.world import World
from nhx_gym_operator.api.wire.reports import NO_OUTCOME_EXIT_CODE, Outcome
from nhx_gym_operator.controller import clock, podview
from nhx_gym_operator.controller.caches import KINDS
from nhx_gym_operator.controller.kube import EVENTS, FILESETS, JOBS, PODS, ApiError, KubeClient
from nhx_gym_operator.controller.policies.lost_hosts import UNSEEN
from nhx_gym_operator.controller.reconciler import Key, Reconciler, Subject
from nhx_gym_operator.controller.settings import Installation
from nhx_gym_operator.workloads.workload import ApiAddresses
from support.controller_values import KEY, settings

Object = dict[str, Any]

PASSES = 40
"""Looks at one job until nothing is left to do. The longest life takes six."""
JOB = "mcqa"
MAINS = {"-host-": "gym-host", "-outcome-": "read-outcome"}
"""Main containers by a part of their pods' names; of all others it is the evaluator's."""


class FaultKind(StrEnum):
    KILLED = "the operator is killed before the write"
    """Which is also after the write before it: what its memory held in between is lost either way."""
    REQUEST_LOST = "the request never arrives"
    ANSWER_LOST = "the request is carried out, and its answer never arrives"


@dataclass(frozen=True)
class Fault:
    """What happens at the write of that number, from 1."""

    kind: FaultKind
    write: int


@dataclass(frozen=True)
class ShortLived:
    """Each operator is killed after so many writes."""

    writes: int


class Killed(BaseException):
    """The operator's process is no more: nothing of it may go on, and no handler of errors takes this for one."""


class FaultyClient(KubeClient):
    """What the operator calls. Counts its writes, over all operators of a life, and has the fault at the chosen one."""

    def __init__(self, real: KubeClient, fault: Fault | ShortLived | None) -> None:
        self._real = real
        self._fault = fault
        self._of_this_operator = 0
        self.writes: list[str] = []

    def next_operator(self) -> None:
        self._of_this_operator = 0

    async def _request(self, method: str, path: str, **more: Any) -> Object:
        if method == "GET":
            return await self._real._request(method, path, **more)
        kind = self._kind_now()
        if kind is FaultKind.KILLED:
            raise Killed
        self._of_this_operator += 1
        self.writes.append(f"{method} {path}")
        if kind is FaultKind.REQUEST_LOST:
            raise ApiError(0, "Unreachable", f"{method} {path}: lost")
        answer = await self._real._request(method, path, **more)
        if kind is FaultKind.ANSWER_LOST:
            raise ApiError(0, "Unreachable", f"{method} {path}: no answer")
        return answer

    def _kind_now(self) -> FaultKind | None:
        match self._fault:
            case ShortLived(writes) if self._of_this_operator >= writes:
                return FaultKind.KILLED
            case Fault(kind, write) if len(self.writes) + 1 == write:
                self._fault = None
                return kind
        return None


class Life:
    """One job in a namespace of its own, and who acts on it."""

    def __init__(self, world: World, fault: Fault | ShortLived | None = None, **changes: Any) -> None:
        self.world = world
        self._api = FaultyClient(world.api, fault)
        chosen = settings(watchNamespaces=[world.namespace], **changes)
        self._installation = Installation(chosen, KEY, ApiAddresses(("198.18.48.1", 443)))
        self._ahead = timedelta()
        self._uid = ""
        self._pods: dict[str, set[str]] = defaultdict(set)
        self._lost: Counter[str] = Counter()
        self._operator = self._new_operator()

    @property
    def writes(self) -> list[str]:
        return self._api.writes

    def _new_operator(self) -> Reconciler:
        self._api.next_operator()
        return Reconciler(self._installation, self._api, now=lambda: clock.now() + self._ahead)

    # What others do

    async def apply(self, **spec: Any) -> None:
        self._uid = (await self.world.apply_job(JOB, **spec))["metadata"]["uid"]
        await self.settle()

    async def change(self, **fields: Any) -> None:
        await self.world._patch(JOBS, JOB, {"spec": fields})
        await self.settle()

    async def later(self, seconds: float) -> None:
        """The operator's clock goes forward."""
        self._ahead += timedelta(seconds=seconds)
        await self.settle()

    async def start(self) -> None:
        """Scheduler and kubelet start what there is."""
        for pod in await self.world.names(PODS):
            if not (await self.world.api.get(PODS, self.world.namespace, pod))["spec"].get("nodeName"):
                await self.world.bind(pod)
                main = next((main for part, main in MAINS.items() if part in pod), "agent-evaluate")
                await self.world.report(pod, {main: {"running": {"startedAt": "2026-11-29T12:00:00Z"}}})
        await self.settle()

    async def end(self, outcome: Outcome, attempt: int = 1, *, pod: str = "evaluator") -> None:
        """The evaluator ends."""
        await self.world.report_outcome(outcome, f"{JOB}-{pod}-{attempt}")
        await self.settle()

    async def lose(self, pod: str) -> None:
        """A pod goes without a word: its node is gone."""
        await self.world.kill(pod)
        self._lost[pod] += 1
        await self.settle()

    async def lose_evaluator(self, attempt: int) -> None:
        """While it ran; and its claim then holds no outcome of it."""
        await self.lose(f"{JOB}-evaluator-{attempt}")
        await self.start()
        words = "its results hold what it recorded, and no outcome"
        ended = {"exitCode": NO_OUTCOME_EXIT_CODE, "message": words, "finishedAt": "2026-11-29T12:00:01Z"}
        await self.world.report(f"{JOB}-outcome-{attempt}", {"read-outcome": {"terminated": ended}}, "Failed")
        await self.settle()

    async def end_told(self) -> None:
        """The kubelet has ended what it was told to."""
        answer = await self.world.api.list(PODS, self.world.namespace)
        for pod in answer["items"]:
            if podview.is_terminating(pod):
                await self.world.kill(podview.name(pod))
        await self.settle()

    # The operator

    async def settle(self) -> None:
        """The operator, and its successors, until nothing is left to do now."""
        stale = True
        for _ in range(PASSES):
            before = len(self.writes)
            try:
                if stale:
                    await self._list()
                again = await self._operator._reconcile(Key(Subject.JOB, self._uid))
                stale = any(write.startswith("DELETE") for write in self.writes[before:])
            except Killed:
                self._operator, stale = self._new_operator(), True
                continue
            except ApiError:
                # As the queue does, after a pause.
                stale = True
                continue
            finally:
                if any("/pods" in write for write in self.writes[before:]):
                    await self._look()
            if len(self.writes) == before and (again is None or again > 0):
                return
        raise AssertionError(f"after {PASSES} passes still: {self.writes[-10:]}")

    async def _list(self) -> None:
        """In place of the watches. What the operator writes itself comes back with the answers."""
        for kind in KINDS:
            if kind.resource not in (FILESETS, EVENTS):
                await self._operator.caches._verify(self._api, kind)

    async def _look(self) -> None:
        """At each moment: no pod was made again that had not been lost, and one evaluator at most is alive."""
        pods = (await self.world.api.list(PODS, self.world.namespace))["items"]
        for pod in pods:
            self._pods[podview.name(pod)].add(podview.uid(pod))
        again = [name for name, uids in self._pods.items() if len(uids) > 1 + self._lost[name]]
        assert not again, f"made twice: {again}"
        alive = [podview.name(pod) for pod in pods if podview.is_evaluator(pod) and not podview.has_ended(pod)]
        assert len(alive) <= 1, f"two evaluators: {alive}"

    # The end

    async def clear(self) -> None:
        """There are fewer addresses of Services than lives in a session."""
        await self.world.delete_namespace()

    async def result(self) -> dict[str, Any]:
        """All that is left, value by path, without what differs from life to life: UIDs, times, tokens, addresses, and
        whether an operator was there when a host went."""
        children = await self.world.children()
        job = await self.world.job() if await self.world.exists(JOBS, JOB) else {"metadata": {"uid": self._uid}}
        service = children.get(f"Service/{JOB}")
        address = service["spec"]["clusterIP"] if service else "no address"
        text = json.dumps(
            {
                "status": job.get("status"),
                "children": {_stem(name): _plain(child) for name, child in sorted(children.items())},
            }
        )
        for value, name in ((self._uid, "UID"), (self.world.namespace, "NAMESPACE"), (address, "ADDRESS")):
            text = text.replace(value, name)
        for uid in (uid for uids in self._pods.values() for uid in uids):
            text = text.replace(uid, "POD")
        text = re.sub(rf"pod '{JOB}-host-[^']*' ended without an outcome: no reason given|{UNSEEN}", "GONE", text)
        text = re.sub(r"(-evaluator|-host-\d+)-[0-9a-f]{10}\b", r"\1-SECRET", text)
        return _flat(json.loads(re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME", text)))


def _stem(name: str) -> str:
    """A Secret's name ends in digits that nobody can guess."""
    return name.rpartition("-")[0] if name.startswith("Secret/") else name


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Value by path, so that a difference is named by where it is."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {path: value} if not parts else {}
    for key, part in parts:
        found |= _flat(part, f"{path}/{key}")
    return found


def _plain(child: Object) -> Object:
    own = ("uid", "resourceVersion", "managedFields", "generation")
    metadata = {field: value for field, value in child["metadata"].items() if field not in own}
    plain = {**child, "metadata": metadata}
    if "data" in plain:
        plain["data"] = sorted(plain["data"])
    return plain
