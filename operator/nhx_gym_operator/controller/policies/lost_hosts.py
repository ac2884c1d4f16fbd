"""How often each gym host of an attempt was lost: what the status says, and what has gone since.

An operator that has just started never saw the pods that went before. But the status names the pod that each host had
last: one that is not there any more was lost, whoever was looking, and is counted once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...api.constants import CONTAINER_GATE, CONTAINER_HOST
from ...api.status import MAX_LOST_MESSAGE, JobHostPod
from .. import podview
from ..attempt import Attempt
from ..clock import format_time, parse_time
from ..observation import Observation
from .lost_attempt import how_it_ended

Manifest = dict[str, Any]

UNSEEN = "its pod is gone, and no operator saw how"


def records(observation: Observation, attempt: Attempt, now: datetime) -> dict[int, JobHostPod]:
    """By the host's number, for hosts that had a pod in this attempt. Without an evaluator nothing is counted: its loss
    is what counts then."""
    status = observation.job.status
    noted = {entry.host: entry for entry in status.host_pods or ()} if status.attempt == attempt.number else {}
    if attempt.evaluator is None:
        return noted
    hosts = range(observation.job.spec.hosts)
    known = {number: _pods(observation, attempt, number) for number in hosts}
    there = {podview.uid(pod) for pod in attempt.hosts}
    return {
        number: _record(number, noted.get(number), known[number], there, now)
        for number in hosts
        if number in noted or known[number]
    }


def last_lost(of: dict[int, JobHostPod]) -> str:
    """How the host ended that was lost last; empty if none was."""
    lost = [record for record in of.values() if record.lost]
    return max(lost, key=lambda record: parse_time(record.lost_time)).lost_message if lost else ""


def how_host_ended(pod: Manifest) -> str:
    gate = podview.terminated(pod, CONTAINER_GATE)
    if gate and gate.get("exitCode") != 0:
        return f"pod {podview.name(pod)!r}: {gate_words(gate)}"
    return how_it_ended(pod, podview.terminated(pod, CONTAINER_HOST))


def gate_words(gate: dict[str, Any]) -> str:
    """What a gate that did not pass said."""
    return gate.get("message", "").strip() or f"exit code {gate.get('exitCode')}"


def _pods(observation: Observation, attempt: Attempt, number: int) -> list[Manifest]:
    """The host's pods as far as this process saw them, the newest last. What is gone and older than the evaluator was
    withdrawn with an earlier one, since a pod that belongs to them was refused."""
    since = podview.created(attempt.evaluator)
    gone = (
        pod
        for pod in observation.ghosts
        if podview.is_host(pod) and podview.attempt(pod) == attempt.number and podview.created(pod) >= since
    )
    # Of one name there is one pod at a time, so they went in the order in which they came.
    return [pod for pod in (*gone, *attempt.hosts) if podview.ordinal(pod) == number]


def _record(
    number: int, before: JobHostPod | None, pods: Sequence[Manifest], there: set[str], now: datetime
) -> JobHostPod:
    record = before or JobHostPod(host=number)
    uids = [podview.uid(pod) for pod in pods]
    if record.uid in uids:
        pods = pods[uids.index(record.uid) :]
    elif record.uid and not record.gone:
        record = _lost(record, now, UNSEEN)
    for pod in pods:
        uid = podview.uid(pod)
        if uid != record.uid:
            record = record.model_copy(update={"uid": uid, "gone": False})
        if uid not in there and not record.gone:
            record = _lost(record, _end_of(pod) or now, how_host_ended(pod))
    return record


def _lost(record: JobHostPod, moment: datetime, how: str) -> JobHostPod:
    update = {"gone": True, "lost": record.lost + 1, "lost_time": format_time(moment)}
    return record.model_copy(update={**update, "lost_message": how[:MAX_LOST_MESSAGE]})


def _end_of(pod: Manifest) -> datetime | None:
    """When it ended or was told to, as far as that was reported."""
    ended = podview.terminated(pod, CONTAINER_HOST) or {}
    return parse_time(ended["finishedAt"]) if ended.get("finishedAt") else podview.grace_over(pod)
