"""What a job does about a failure of a kind: rules after batch/v1 Job's `podFailurePolicy`.

There a rule goes by exit codes and conditions of a pod; here it goes by the class of a failed rollout, or by the cause
of a lost attempt. docs/life-cycle.md says what else differs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .origins import batch_job, ours
from .resource import ApiModel, rule, validated
from .wire.reports import FailureClass

MAX_RULES = 20
"""As batch/v1 Job allows."""


class FailureAction(StrEnum):
    """What a rule does."""

    FAIL_JOB = "FailJob"
    """The job fails at once. Rollouts that are under way are given up; what was recorded is scored."""
    FAIL_ROLLOUT = "FailRollout"
    """Of rollouts: it is not run again, whatever `spec.retryFailed` says."""
    IGNORE = "Ignore"
    """Of lost attempts: another one follows, and `spec.backoffLimit` does not count this one."""
    COUNT = "Count"
    """As without a rule: `spec.retryFailed` and `spec.minCoverage` decide about a rollout, `spec.backoffLimit` about an
    attempt."""


class LossCause(StrEnum):
    """How an attempt was lost, as far as its evaluator's pod tells."""

    OOM_KILLED = "OOMKilled"
    """The evaluator's container took more memory than it may."""
    EVICTED = "Evicted"
    """The pod was evicted: by its kubelet, whose node ran short of something or shuts down, or by the Eviction API, as
    `kubectl drain` does it."""
    PREEMPTED = "Preempted"
    """The pod made room for one of a higher priority."""
    NODE_LOST = "NodeLost"
    """The node is gone, out of reach, or has a taint that the pod does not bear."""
    DELETED = "Deleted"
    """Somebody deleted the pod."""
    KILLED = "Killed"
    """The container ended without an outcome for another reason, mostly by a signal."""
    UNKNOWN = "Unknown"
    """The pod is gone, and no operator saw how."""


class OnRollout(ApiModel):
    """A failed rollout of one of these classes."""

    classes: Annotated[list[FailureClass], ours("classes of failed rollouts")] = Field(
        min_length=1,
        max_length=len(FailureClass),
        description="Classes of failures, as docs/results.md explains them.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class OnLostAttempt(ApiModel):
    """A lost attempt of one of these causes."""

    causes: Annotated[list[LossCause], ours("causes of lost attempts")] = Field(
        min_length=1,
        max_length=len(LossCause),
        description="Causes of a loss, as docs/life-cycle.md explains them.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class FailureRule(ApiModel):
    """One rule: what it is about, and what follows."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "has(self.onRollout) != has(self.onLostAttempt)", "set one of onRollout and onLostAttempt in each rule"
            ),
            rule(
                f"self.action != '{FailureAction.FAIL_ROLLOUT}' || has(self.onRollout)",
                "FailRollout goes with onRollout; of a lost attempt an action is FailJob, Ignore or Count",
                field=".action",
            ),
            rule(
                f"self.action != '{FailureAction.IGNORE}' || has(self.onLostAttempt)",
                "Ignore goes with onLostAttempt; of a rollout an action is FailJob, FailRollout or Count",
                field=".action",
            ),
        )
    )

    action: Annotated[FailureAction, batch_job("podFailurePolicy.rules.action")] = Field(
        description="FailJob: the job fails at once. FailRollout: the rollout is not run again. Ignore: the lost "
        "attempt does not count against `backoffLimit`. Count: as without a rule."
    )
    on_rollout: Annotated[OnRollout | None, ours("a rule about failed rollouts")] = Field(
        default=None,
        description="The rule is about failed rollouts of these classes. Unset: it is about lost attempts.",
    )
    on_lost_attempt: Annotated[OnLostAttempt | None, ours("a rule about lost attempts")] = Field(
        default=None, description="The rule is about attempts lost by these causes. Unset: it is about failed rollouts."
    )


class FailurePolicy(ApiModel):
    """Rules about failures of a kind. The first that fits is the only one that counts."""

    rules: Annotated[list[FailureRule], batch_job("podFailurePolicy.rules")] = Field(
        min_length=1,
        max_length=MAX_RULES,
        description="Of these the first that fits counts. A failure that none fits is dealt with as by Count.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )

    def on_loss(self, cause: LossCause) -> tuple[FailureAction, str] | None:
        """What is to be done about a lost attempt, with the rule's place in a user's words. None: no rule fits."""
        fitting = (
            (rule.action, place(number))
            for number, rule in enumerate(self.rules)
            if rule.on_lost_attempt and cause in rule.on_lost_attempt.causes
        )
        return next(fitting, None)


def place(number: int) -> str:
    """The path of a rule, as the spec has it."""
    return f"spec.failurePolicy.rules[{number}]"
