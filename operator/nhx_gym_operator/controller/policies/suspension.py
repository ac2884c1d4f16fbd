"""`spec.suspend`: a job without pods, which keeps what it recorded and goes on from there.

What counts from the job's start begins anew when it is resumed, as for batch/v1 Job. Its conditions about pods go with
them: a wait of before has nothing to say about one of afterwards.
"""

from __future__ import annotations

from ...api.conditions import ConditionType, RunReason
from .. import status_fields
from ..attempt import Attempt
from ..observation import Observation
from ..status_draft import StatusDraft
from . import recorded, stop

_OF_PODS = (ConditionType.STAGED, ConditionType.SANDBOX_READY, ConditionType.RUNNING)
_STARTS = ("startTime", "podsStartTime")


def is_wanted(observation: Observation, attempt: Attempt) -> bool:
    """Whether the job is to have no pods. One that has come to an end, or is to, is not suspended as well."""
    spec = observation.job.spec
    if not spec.suspend or spec.cancel or stop.has_its_own_end(attempt):
        return False
    return not would_lose(observation, attempt)


def would_lose(observation: Observation, attempt: Attempt) -> bool:
    """Whether rollouts that were paid for would go with the evaluator's pod, which was not told to end yet."""
    if attempt.number == 0 or attempt.number == observation.job.status.ended_attempt:
        return False
    return not recorded.outlives_pods(observation) and recorded.may_have_collected(observation, attempt)


def begin(draft: StatusDraft) -> None:
    """The pods are gone."""
    so_far = recorded.so_far(draft.data)
    kept = f"; {so_far} are recorded and stay on the claim" if so_far else ""
    draft.set(ConditionType.SUSPENDED, True, RunReason.JOB_SUSPENDED, f"spec.suspend is true: no pods run{kept}")
    draft.drop(*_OF_PODS)
    if not draft.is_true(ConditionType.ACCEPTED):
        draft.drop(ConditionType.ACCEPTED)
    for field in _STARTS:
        draft.data.pop(field, None)
    if "hosts" in draft.data:
        status_fields.show_hosts(draft, 0, draft.data["hosts"]["desired"])


def show_not(draft: StatusDraft, observation: Observation, attempt: Attempt) -> None:
    """Of a job that goes on: that it was resumed, or why it is not suspended though its spec says so."""
    if observation.job.spec.suspend and would_lose(observation, attempt):
        draft.set(
            ConditionType.SUSPENDED,
            False,
            RunReason.RESULTS_WOULD_BE_LOST,
            "spec.suspend is true, but the rollouts recorded so far are on the emptyDir of a pod, which would go with "
            "it: the job goes on",
        )
    elif draft.condition(ConditionType.SUSPENDED):
        draft.set(ConditionType.SUSPENDED, False, RunReason.JOB_RESUMED, "the job is not suspended")
