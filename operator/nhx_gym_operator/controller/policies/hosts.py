"""The gym hosts: whether their sandbox is as built, how far they are, and when one is replaced.

The evaluator waits for a host that it lost and takes a new one in its place, so a host is replaced
within the attempt. Only the evaluator's loss makes a new attempt. Of several hosts, one that is away or
beyond repair slows the job; what shows that the sandbox is not as it should be ends it on any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from ...api.conditions import PodReason, SandboxReason
from ...api.constants import CONTAINER_EVALUATE, CONTAINER_GATE, CONTAINER_HOST, ROLE_LABEL
from ...api.job import AgentEvalJob
from ...api.pod_rules import CONTAINER_SECURITY, POD_SECURITY
from ...api.wire.endpoints import Progress, Stage
from ...api.wire.plans import HOST_PLAN_ENV, HostPlan
from ...api.wire.reports import GATE_OPEN_EXIT_CODE
from ...workloads.pods import TOKENS_VOLUME
from ...workloads.podspec import plan_in
from ...workloads.secrets import host_secret_stem
from .. import podview
from ..attempt import Attempt
from ..clock import parse_time, seconds_since
from ..observation import Observation
from ..trimming import LEFT_OUT, MAX_VALUES
from . import backoff, deadlines, lost_hosts, restarts

Manifest = dict[str, Any]

HOST_END_GRACE_SECONDS = 15.0
"""An evaluator whose host ended has this long to say what that means for the job."""
_BUILT_CONTAINERS = {CONTAINER_GATE, CONTAINER_HOST}
_SECCOMP = POD_SECURITY["seccompProfile"]
_BORNE = {"privileged": (None, False), "procMount": (None, "Default"), "seccompProfile": (None, _SECCOMP)}
_SHARED = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")


@dataclass(frozen=True)
class Fault:
    """Why a sandbox cannot be used, for good."""

    reason: StrEnum
    message: str


@dataclass(frozen=True)
class Readiness:
    """The condition SandboxReady."""

    ready: bool
    reason: SandboxReason
    message: str


def find_fault(observation: Observation, attempt: Attempt, now: datetime) -> Fault | None:
    """A sandbox that is not as built, gates without a verdict on every host, or hosts that were all lost too often."""
    unproven = []
    for host in attempt.hosts:
        foreign = podview.container_names(host) - _BUILT_CONTAINERS
        if foreign:
            return Fault(
                PodReason.POD_CHANGED,
                f"host pod {podview.name(host)!r} holds containers that this operator did not ask for: "
                f"{', '.join(sorted(foreign))}; exempt pods with the label {ROLE_LABEL}=gym-host from "
                f"whatever adds them",
            )
        opened = _opened_by(host, observation.job)
        if opened:
            return Fault(
                PodReason.POD_CHANGED,
                f"host pod {podview.name(host)!r} is not as this operator asked for it: {opened}; exempt pods with the "
                f"label {ROLE_LABEL}=gym-host from whatever changes them",
            )
        gate = _failed_gate(host)
        if gate and gate.reason is SandboxReason.SANDBOX_OPEN:
            return gate
        unproven += [gate] if gate else []
    desired = observation.job.spec.hosts
    if len(unproven) >= desired:
        return unproven[0]
    if len(_beyond_limit(observation, attempt, now)) < desired:
        return None
    records, limit = lost_hosts.records(observation, attempt, now), observation.job.spec.backoff_limit
    lost = sum(record.lost for record in records.values())
    words = f"{lost} gym hosts of attempt {attempt.number} were lost, and spec.backoffLimit is {limit}"
    words += " for each of them" if desired > 1 else ""
    return Fault(SandboxReason.HOST_LOST, f"{words}; the last one: {lost_hosts.last_lost(records)}")


def readiness(observation: Observation, attempt: Attempt, now: datetime) -> Readiness:
    """How far the hosts are, from the evaluator if it answers, else from the host pods. The first that is ready takes
    rollouts, so from then on there is a sandbox."""
    progress = restarts.answer(observation, attempt)
    if progress and (progress.stage is not Stage.STARTING or progress.hosts_ready):
        if progress.stage not in (Stage.STARTING, Stage.COLLECTING) or _all_ready(progress):
            return Readiness(True, SandboxReason.HOST_READY, "the gate passed and Gym answers")
        words = [progress.message or "a gym host stopped answering", _last_end(observation, attempt, now)]
        message = "; ".join(filter(None, [*words, *_not_made_again(observation, attempt, now)]))
        if progress.hosts_ready:
            return Readiness(True, SandboxReason.SOME_HOSTS_READY, message)
        return Readiness(False, SandboxReason.HOST_LOST, message)
    started = [
        parse_time(running["startedAt"])
        for host in attempt.hosts
        if (running := podview.state(host, CONTAINER_HOST).get("running"))
    ]
    evaluator = attempt.evaluator
    if started and evaluator and podview.deaths(evaluator, CONTAINER_EVALUATE):
        words = (progress and progress.message) or "the gym hosts go on; the evaluator hears of them once it is back"
        return Readiness(False, SandboxReason.HOST_STARTING, words)
    if started:
        limit = observation.job.spec.target.gym.startup_timeout_seconds
        left = limit - seconds_since(max(started), now)
        words = "the gate passed; Gym's servers are starting"
        ends = deadlines.until(left, now, "spec.target.gym.startupTimeoutSeconds")
        return Readiness(False, SandboxReason.HOST_STARTING, words + ends)
    return Readiness(False, SandboxReason.GATE_CHECKING, "the sandbox's network policy has still to be shown to hold")


def to_remove(observation: Observation, attempt: Attempt, cluster_ip: str | None, now: datetime) -> list[Manifest]:
    """Host pods that are of no use any more while the evaluator needs them: ended ones, and such that
    know an address which the Service no longer has."""
    if not needs_hosts(observation, attempt):
        return []
    return [
        host
        for host in attempt.hosts
        if not podview.is_terminating(host)
        and (_ended_for_long(host, attempt.evaluator, now) or _knows_another_address(host, cluster_ip))
    ]


def absent(observation: Observation, attempt: Attempt, now: datetime) -> list[int]:
    """Ordinals that are to have a pod and have none. A terminating pod holds its name until it is gone."""
    present = {podview.ordinal(host) for host in attempt.hosts}
    beyond = _beyond_limit(observation, attempt, now)
    return [n for n in range(observation.job.spec.hosts) if n not in present and n not in beyond]


def pause_left(observation: Observation, attempt: Attempt, ordinal: int, now: datetime) -> float:
    """Seconds until a lost host may be replaced; 0 or less: now. The evaluator waits for it, so the first is replaced
    at once, as a kubelet restarts a container; the pauses between further ones grow."""
    record = lost_hosts.records(observation, attempt, now).get(ordinal)
    if record is None or record.lost < 2:
        return 0.0
    return backoff.seconds_after(record.lost - 1) - seconds_since(parse_time(record.lost_time), now)


def needs_hosts(observation: Observation, attempt: Attempt) -> bool:
    """False once all rollouts are in, when hosts end because they were told to."""
    progress = restarts.answer(observation, attempt)
    return progress is None or progress.stage in (Stage.STARTING, Stage.COLLECTING)


def look_again_after(attempt: Attempt, now: datetime) -> float | None:
    """Seconds until an ended host's grace is over; None if there is none."""
    left = [
        HOST_END_GRACE_SECONDS - _seconds_ended(ended, now)
        for host in attempt.hosts
        if (ended := podview.terminated(host, CONTAINER_HOST))
    ]
    return min((seconds for seconds in left if seconds > 0), default=None)


def known_address(pods: tuple[Manifest, ...]) -> str | None:
    """The Service address in the plan of a host pod that is still there."""
    for pod in pods:
        if not podview.is_host(pod) or podview.has_ended(pod):
            continue
        plan = plan_in(pod, CONTAINER_HOST, HOST_PLAN_ENV, HostPlan)
        if plan:
            return urlsplit(plan.evaluator_url).hostname
    return None


def _opened_by(host: Manifest, job: AgentEvalJob) -> str:
    """What admission put into a host pod that opens its sandbox: a webhook for cloud credentials, for
    instance, adds a volume with a token to every pod. Empty if nothing. It is no proof against whoever may make pods in
    the job's namespace, and with them have all that a host has: their image may be any."""
    spec, runtime_class = host["spec"], job.status.runtime_class_name
    if LEFT_OUT in spec:
        return f"it holds more than {MAX_VALUES} values"
    if runtime_class and spec.get("runtimeClassName") != runtime_class:
        return f"its runtimeClassName is {spec.get('runtimeClassName')!r}, not {runtime_class!r}"
    shared = [field for field in _SHARED if spec.get(field)]
    if shared:
        return f"{shared[0]} is set"
    if (spec.get("securityContext") or {}).get("seccompProfile") != _SECCOMP:
        return "its securityContext.seccompProfile is not as it was asked for"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        changed = _changed_rights(container.get("securityContext") or {})
        if changed:
            return f"securityContext.{changed[0]} of container {container['name']!r} is not as it was asked for"
        secrets = _secrets_brought(container, job)
        if secrets:
            brought = f"container {container['name']!r} is given {secrets[0]}"
            return f"{brought}, for which spec.target.gym.envSecrets does not ask"
    own = host_secret_stem(job.metadata.name, podview.ordinal(host))
    brought = [volume["name"] for volume in spec.get("volumes", ()) if not _is_built(volume, own)]
    return f"it has the volumes {', '.join(map(repr, sorted(brought)))}" if brought else ""


def _is_built(volume: Manifest, own: str) -> bool:
    """Whether it is one of those that a host has: scratch space, and its tokens, in a Secret whose name begins so."""
    if volume["name"] == TOKENS_VOLUME:
        return (volume.get("secret") or {}).get("secretName", "").startswith(own)
    return "emptyDir" in volume


def _changed_rights(security: Manifest) -> list[str]:
    """Fields of a container's securityContext that are not as built."""
    changed = [field for field, value in CONTAINER_SECURITY.items() if security.get(field) != value]
    return changed + [field for field, borne in _BORNE.items() if security.get(field) not in borne]


def _secrets_brought(container: Manifest, job: AgentEvalJob) -> list[str]:
    """What a container has of Secrets that is none of the job's `envSecrets`, in words."""
    asked = [value.secret_key_ref for value in job.spec.target.gym.env_secrets.values()]
    allowed = {(ref.name, ref.key) for ref in asked}
    keys = [(variable.get("valueFrom") or {}).get("secretKeyRef") for variable in container.get("env") or ()]
    whole = [source.get("secretRef") for source in container.get("envFrom") or ()]
    brought = [ref for ref in keys if ref and (ref.get("name"), ref.get("key")) not in allowed]
    return [
        *(f"key {ref.get('key')!r} of Secret {ref.get('name')!r}" for ref in brought),
        *(f"all of Secret {ref.get('name')!r}" for ref in whole if ref),
    ]


def _failed_gate(host: Manifest) -> Fault | None:
    """What a gate that did not pass means. It has one code for an open sandbox; every other end is one without a
    verdict."""
    gate = podview.terminated(host, CONTAINER_GATE)
    if not gate or gate.get("exitCode") == 0:
        return None
    is_open = gate.get("exitCode") == GATE_OPEN_EXIT_CODE
    reason = SandboxReason.SANDBOX_OPEN if is_open else SandboxReason.GATE_FAILED
    return Fault(reason, lost_hosts.gate_words(gate))


def _beyond_limit(observation: Observation, attempt: Attempt, now: datetime) -> list[int]:
    """Numbers of hosts that were lost more often than they are replaced."""
    limit = observation.job.spec.backoff_limit
    records = lost_hosts.records(observation, attempt, now)
    return [number for number, record in records.items() if record.lost > limit]


def _not_made_again(observation: Observation, attempt: Attempt, now: datetime) -> list[str]:
    limit = observation.job.spec.backoff_limit
    beyond = _beyond_limit(observation, attempt, now)
    return [f"gym host {n} was lost more often than spec.backoffLimit ({limit}) and is not made again" for n in beyond]


def _last_end(observation: Observation, attempt: Attempt, now: datetime) -> str:
    """How the host of the attempt ended that did so last; empty if none has."""
    ended = [host for host in attempt.hosts if podview.has_ended(host)]
    if ended:
        return lost_hosts.how_host_ended(max(ended, key=podview.created))
    return lost_hosts.last_lost(lost_hosts.records(observation, attempt, now))


def _all_ready(progress: Progress) -> bool:
    return progress.hosts > 0 and progress.hosts_ready >= progress.hosts


def _ended_for_long(host: Manifest, evaluator: Manifest | None, now: datetime) -> bool:
    if not podview.has_ended(host):
        return False
    ended = podview.terminated(host, CONTAINER_HOST)
    if ended is None:
        # Evicted, or its node is gone: a failed gate was a fault before this is asked.
        return True
    # Without progress to go by, a clean end is an evaluator's order: of the one that runs, or of one before it.
    is_ordered = ended.get("exitCode") == 0 and not _began_since(evaluator, ended)
    return _seconds_ended(ended, now) >= HOST_END_GRACE_SECONDS and not is_ordered


def _began_since(evaluator: Manifest | None, ended: dict[str, Any]) -> bool:
    """Whether the evaluator was started again in its place after that end."""
    running = podview.state(evaluator, CONTAINER_EVALUATE).get("running") if evaluator else None
    if not running or not ended.get("finishedAt"):
        return False
    return parse_time(running["startedAt"]) > parse_time(ended["finishedAt"])


def _knows_another_address(host: Manifest, cluster_ip: str | None) -> bool:
    known = known_address((host,))
    return bool(cluster_ip and known and known != cluster_ip)


def _seconds_ended(ended: dict[str, Any], now: datetime) -> float:
    finished = ended.get("finishedAt")
    return seconds_since(parse_time(finished), now) if finished else HOST_END_GRACE_SECONDS
