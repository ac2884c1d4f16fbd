"""The outcome of an evaluator whose pod is gone: the claim may hold it. A pod reads that, and never the operator."""

from __future__ import annotations

from datetime import datetime

from ...api.constants import CONTAINER_EVALUATE, CONTAINER_OUTCOME
from ...api.wire.reports import NO_OUTCOME_EXIT_CODE, NO_RECORDS_EXIT_CODE, Outcome
from ...workloads import storage
from .. import podview
from ..attempt import Attempt, last_evaluator
from ..observation import Observation
from . import deadlines, evaluator_end, podproblems
from .deadlines import Deadline
from .podproblems import PodProblem

_NOT_FOUND = "ContainerStatusUnknown"
"""The end, without any words, that a kubelet writes of a container which it does not find any more."""


def may_be_kept(observation: Observation, attempt: Attempt) -> bool:
    """Whether the lost evaluator may have come to an end that nobody was told. Where the kubelet reported its end, what
    it said is all that there is."""
    pod = attempt.evaluator
    if not has_claim(observation) or (pod and not podview.has_ended(pod)):
        # One whose end nobody reports may still hold the claim, and write to it.
        return False
    last_seen = last_evaluator(observation, attempt)
    if last_seen is None:
        return True
    ended = podview.terminated(last_seen, CONTAINER_EVALUATE)
    return ended.get("reason") == _NOT_FOUND if ended else podview.is_running(last_seen, CONTAINER_EVALUATE)


def has_claim(observation: Observation) -> bool:
    """Whether what the job recorded is still on a claim, as far as the operator looks: at one that was made for it."""
    job = observation.job
    if job.spec.results.persistent_volume_claim is None:
        return False
    if storage.own_claim_name(job.spec.results, job.metadata.name, job.metadata.uid) is None:
        return True
    return observation.claim is not None and "deletionTimestamp" not in observation.claim["metadata"]


def found(attempt: Attempt) -> Outcome | None:
    """The final outcome that was read; None if none was."""
    outcome = evaluator_end.outcome_of(attempt.reader, CONTAINER_OUTCOME)
    return outcome if outcome and outcome.is_final else None


def answer(attempt: Attempt) -> str | None:
    """What the reader says of an outcome that it did not find; None while it may still find one."""
    ended = podview.terminated(attempt.reader, CONTAINER_OUTCOME) if attempt.reader else None
    if ended is None:
        failed = attempt.reader is not None and podview.has_ended(attempt.reader)
        return "whether it had ended could not be read: the pod that was to read it was ended" if failed else None
    words = ended.get("message", "").strip() or f"exit code {ended.get('exitCode')}"
    if ended.get("exitCode") in (NO_OUTCOME_EXIT_CODE, NO_RECORDS_EXIT_CODE):
        return words
    return f"whether it had ended could not be read: {words}"


def holds_nothing(attempt: Attempt) -> bool:
    """Whether the claim was seen to have no record of the job."""
    ended = podview.terminated(attempt.reader, CONTAINER_OUTCOME) if attempt.reader else None
    return bool(ended and ended.get("exitCode") == NO_RECORDS_EXIT_CODE)


def problem(observation: Observation, attempt: Attempt) -> PodProblem | None:
    """What keeps the reader from starting."""
    return podproblems.find(attempt.reader, observation.pod_events) if attempt.reader else None


def bound(observation: Observation) -> Deadline:
    """Of the whole reading, which takes seconds. The next attempt goes on from the same claim, and tells by itself what
    is wrong with it."""
    return deadlines.of_pods(observation.installation.settings.timeouts)


def seconds_left(observation: Observation, attempt: Attempt, now: datetime) -> float:
    """Until an existing reader is given up; 0 or less: now."""
    if attempt.reader is None:
        return 0.0
    return bound(observation).seconds_left(podview.created(attempt.reader), now)
