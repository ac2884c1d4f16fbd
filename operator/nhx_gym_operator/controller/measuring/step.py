"""From what is known about the canaries and the clock to what is to be done next. Pure, like `decide` for a job.

A measurement goes: policies that let the client reach both ports; the listener; the client, whose first container
proves that both are reachable; the client's policy without the second port; the client's other container, which waits
until that is refused; the findings; both pods deleted. Every state is read from the objects themselves, so that an
operator that starts again, or two of them, go on where the measurement is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ...api.constants import (
    CANARY_LABEL,
    CONTAINER_LISTEN,
    CONTAINER_REACH,
    CONTAINER_REFUSED,
    SUBJECT_ANNOTATION,
    Role,
)
from ...api.wire.reports import GATE_OPEN_EXIT_CODE, CanaryReport
from ...workloads import canary as canaries
from ...workloads.canary import Canary, Turn
from .. import podview
from ..clock import format_time, parse_time, seconds_since
from ..observation import Apply, Create, DeletePod, PodEvent
from ..policies import cleanup, podproblems
from . import kernels
from .findings import RETRY_SECONDS, Findings, Verdict, due_at, merged, unmeasured
from .kernels import NodeKernel

Manifest = dict[str, Any]

LOOK_AGAIN_SECONDS = 0.5
"""While a measurement goes on. It is over in some ten seconds: polling a few objects costs less than a watch."""
TELL_AGAIN_SECONDS = 10.0
"""Between two tellings of what keeps one canary from starting: the kubelet's words change with each of its tries."""


@dataclass(frozen=True)
class Scene:
    """All that is known about the measurement at one moment."""

    canary: Canary
    interval: float
    since: datetime
    """The operator's start, or when a job found its sandbox open: an older measurement does not count."""
    findings: Findings | None = None
    runtime_class_exists: bool | None = None
    """None: not needed, or not to be known."""
    listener: Manifest | None = None
    client: Manifest | None = None
    node: NodeKernel | None = None
    """The client's node."""
    events: tuple[PodEvent, ...] = ()
    """What kubelet and scheduler complain of about canaries that have not started."""
    suspected: tuple[str, ...] = ()
    """Nodes where a job found its sandbox open: they come first, before anything else is known."""
    suspected_at: datetime | None = None
    """Canaries made before that have been given to other nodes, and say nothing of these."""
    gone: frozenset[str] = frozenset()
    """Nodes where something failed and that the cluster has no more."""
    node_unreadable: str = ""
    """Why that is None though the client has a node."""
    refused: str = ""
    """Why the API server would not make a canary, if it just refused one."""


@dataclass(frozen=True)
class Step:
    """What to do: actions in their order, findings to write, and when to look again."""

    actions: tuple[Apply | Create | DeletePod, ...] = ()
    findings: Findings | None = None
    again_after: float = LOOK_AGAIN_SECONDS


def next_step(scene: Scene, now: datetime) -> Step:
    pods = [pod for pod in (scene.listener, scene.client) if pod is not None]
    for pod in pods:
        if pod["metadata"].get("labels", {}).get(CANARY_LABEL) != scene.canary.name:
            why = f"pod {podview.name(pod)!r} in namespace {scene.canary.namespace!r} is in the way; remove it"
            return Step((), _placed(scene, unmeasured(scene.canary.subject, now, why)), RETRY_SECONDS)
    if any(podview.is_terminating(pod) or _is_of_another_measurement(pod, scene) for pod in pods):
        return Step(cleanup.of_all(pods))
    if scene.refused:
        return _conclude(scene, _refused(scene, now))
    if not pods:
        return _begin(scene, now)
    return _go_on(scene, now)


def _begin(scene: Scene, now: datetime) -> Step:
    due = due_at(scene.findings, scene.canary.subject, scene.interval, scene.since)
    if now < due:
        return Step(again_after=seconds_since(now, due))
    if scene.runtime_class_exists is False:
        return _conclude(scene, _no_runtime_class(scene, now))
    return Step((*_policies(scene, shut=False), Create(canaries.listener(_in_turn(scene)))))


def _go_on(scene: Scene, now: datetime) -> Step:
    listener, client = scene.listener, scene.client
    if listener is None or podview.has_ended(listener):
        words = "the listening canary ended before the measurement was done"
        return _conclude(scene, unmeasured(scene.canary.subject, now, words))
    if client is None:
        address = podview.ip(listener)
        if not podview.is_running(listener, CONTAINER_LISTEN) or not address:
            return _wait_for_start(scene, listener, now)
        return Step((Create(canaries.client(_in_turn(scene), address)),))
    reached, refused = podview.terminated(client, CONTAINER_REACH), podview.terminated(client, CONTAINER_REFUSED)
    if refused or podview.has_ended(client) or (reached and reached.get("exitCode") != 0):
        return _conclude(scene, _judge(scene, client, now))
    if reached:
        finished = parse_time(reached["finishedAt"])
        if seconds_since(finished, now) > 2 * canaries.MEASURE_SECONDS:
            return _conclude(scene, _judge(scene, client, now))
        return Step(_policies(scene, shut=True)[1:])
    if podview.is_running(client, CONTAINER_REACH):
        return Step()
    return _wait_for_start(scene, client, now)


def _in_turn(scene: Scene) -> Canary:
    turn = scene.findings.turn(scene.canary.subject) if scene.findings else Turn(first=scene.suspected)
    return replace(scene.canary, turn=turn)


def _wait_for_start(scene: Scene, pod: Manifest, now: datetime) -> Step:
    limit = scene.canary.start_seconds
    problem = podproblems.find(pod, scene.events)
    if seconds_since(podview.created(pod), now) < limit:
        return _tell(scene, pod, problem.message, now) if problem else Step()
    words = problem.message if problem else f"canary pod {podview.name(pod)!r} does not start"
    why = f"{words}; still so after {limit:g} s (the operator's setting timeouts.podStartSeconds)"
    return _conclude(scene, unmeasured(scene.canary.subject, now, why))


def _tell(scene: Scene, pod: Manifest, trouble: str, now: datetime) -> Step:
    """At once, while the canary is waited for: a quarter of an hour is long for a misspelt image."""
    told = scene.findings
    if told and told.trouble:
        tried = parse_time(told.tried_at)
        about_this_pod = tried >= podview.created(pod)
        if about_this_pod and (told.trouble == trouble or seconds_since(tried, now) < TELL_AGAIN_SECONDS):
            return Step()
    return Step(findings=_placed(scene, unmeasured(scene.canary.subject, now, trouble)))


def _conclude(scene: Scene, found: Findings) -> Step:
    pods = [pod for pod in (scene.listener, scene.client) if pod is not None]
    return Step(cleanup.of_all(pods), _placed(scene, found))


def _placed(scene: Scene, found: Findings) -> Findings:
    """With where it was found, and with what still stands of before."""
    node = scene.client["spec"].get("nodeName", "") if scene.client else ""
    place = {
        "namespace": scene.canary.namespace,
        "runtime_class_name": scene.canary.runtime_class_name or "",
        "kernel_node": node,
        "network_node": node,
    }
    return merged(scene.findings, found.model_copy(update=place), scene.interval, scene.gone)


def _is_of_another_measurement(pod: Manifest, scene: Scene) -> bool:
    if scene.suspected_at and podview.created(pod) < scene.suspected_at.replace(microsecond=0):
        return True
    return pod["metadata"].get("annotations", {}).get(SUBJECT_ANNOTATION) != scene.canary.subject


def _refused(scene: Scene, now: datetime) -> Findings:
    runtime_class = scene.canary.runtime_class_name
    if runtime_class and f'RuntimeClass "{runtime_class}" not found' in scene.refused:
        return _no_runtime_class(scene, now)
    return unmeasured(scene.canary.subject, now, f"a canary pod was refused: {scene.refused}")


def _no_runtime_class(scene: Scene, now: datetime) -> Findings:
    nothing = unmeasured(scene.canary.subject, now, "not measured without the RuntimeClass")
    message = (
        f"this cluster has no RuntimeClass {scene.canary.runtime_class_name!r}; an administrator can install it, or "
        f"name another in the operator's setting sandbox.runtimeClassName"
    )
    return nothing.model_copy(update={"kernel": Verdict.FAILS, "kernel_message": message, "trouble": ""})


def _judge(scene: Scene, client: Manifest, now: datetime) -> Findings:
    """Of a client that has ended."""
    moment = format_time(now)
    found = unmeasured(scene.canary.subject, now, "")
    reached = podview.terminated(client, CONTAINER_REACH) or {}
    try:
        report = CanaryReport.model_validate_json(reached.get("message", ""))
    except ValidationError:
        why = reached.get("message", "").strip() or f"the client canary ended without a report: {_end(client)}"
        return unmeasured(scene.canary.subject, now, why)
    kernel = _kernel(scene, report)
    verdict, message = _network(client)
    return found.model_copy(
        update={
            "kernel": kernel.verdict,
            "kernel_message": kernel.message,
            "kernel_measured_at": moment,
            "network": verdict,
            "network_message": message,
            "network_measured_at": moment,
            "pids_limit": report.pids_limit,
            "not_checked": kernel.not_checked,
        }
    )


def _kernel(scene: Scene, report: CanaryReport) -> kernels.Comparison:
    runtime_class = scene.canary.runtime_class_name
    if runtime_class is None:
        return kernels.Comparison(
            Verdict.NOT_NEEDED, "hosts share the node's kernel (sandbox.isolation is ContainerOnly)"
        )
    listener, client = scene.listener, scene.client
    together = listener and client and listener["spec"].get("nodeName") == client["spec"].get("nodeName")
    beside = report.listener_kernel if together else None
    return kernels.compare(report.kernel, runtime_class, scene.node, beside, scene.node_unreadable)


def _network(client: Manifest) -> tuple[Verdict, str]:
    ended = podview.terminated(client, CONTAINER_REFUSED) or {}
    words = ended.get("message", "").strip() or _end(client)
    if ended.get("exitCode") == 0:
        return Verdict.HOLDS, f"a network policy that denies is enforced ({words})"
    if ended.get("exitCode") == GATE_OPEN_EXIT_CODE:
        return Verdict.FAILS, (
            f"network policies are not enforced: {canaries.MEASURE_SECONDS:g} s after a policy forbade it, a pod still "
            f"reached {words}. An administrator can let the cluster's network plugin enforce them, or set the "
            f"operator's setting sandbox.mode to Disabled, which runs built-in environments without a sandbox"
        )
    return Verdict.UNKNOWN, f"whether network policies are enforced is not known: {words}"


def _end(pod: Manifest) -> str:
    status = pod.get("status", {})
    return status.get("message") or status.get("reason") or f"phase {podview.phase(pod)}"


def _policies(scene: Scene, *, shut: bool) -> tuple[Apply, ...]:
    return tuple(Apply(policy) for policy in canaries.policies(scene.canary, shut=shut))


def names(canary: Canary) -> tuple[str, str]:
    """Of listener and client."""
    return canary.pod_name(Role.CANARY_LISTENER), canary.pod_name(Role.CANARY_CLIENT)
