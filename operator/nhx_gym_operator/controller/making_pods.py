"""Where a job's pods are asked for: those of an attempt together, a gym host in the place of one that was lost, and the
reader of what a lost evaluator left; with them what has to be there before, and what holds them off.

What is in a pod is decided in `workloads/pods.py`; `act.py` makes all of those that are asked for together, or none.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime
from typing import Any

from ..api.conditions import AcceptedReason, ConditionType
from ..api.constants import Placement
from ..workloads import pods, secrets
from ..workloads.workload import Workload
from . import attempt as attempts
from . import status_fields
from .attempt import Attempt
from .clock import seconds_since
from .decision_draft import INPUTS_RETRY_SECONDS, DecisionDraft
from .inputs import Missing
from .observation import Create, CreateTogether, Observation, PodsRefused
from .policies import cleanup, deadlines, hosts, infrastructure, placement, restarts, sandbox_lacks

WITHDRAWN_RETRY_SECONDS = 2.0


def workload_of(observation: Observation, status: dict[str, Any], attempt: int) -> Workload:
    """The job as the builders of its pods need it. Where it runs is what `status` has pinned. Inputs are there only if
    they were looked up."""
    job, installation = observation.job, observation.installation
    inputs, service = observation.inputs, observation.service
    return Workload(
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        uid=job.metadata.uid,
        spec=job.spec,
        options=installation.settings,
        key=installation.key,
        placement=Placement(status["placement"]),
        runtime_class_name=status.get("runtimeClassName"),
        attempt=attempt,
        cluster_ip=service["spec"].get("clusterIP") if service else None,
        api=installation.api,
        dataset=inputs.dataset if inputs else None,
        environment=inputs.environment if inputs else None,
        restarts=installation.restarts and restarts.are_wanted(job.spec),
    )


class PodMaker:
    """Adds to a decision the pods that a job is to get. What keeps it from them is shown on the draft; where that was
    waited for long enough, the job fails there."""

    def __init__(self, observation: Observation, draft: DecisionDraft, now: datetime) -> None:
        self._observation = observation
        self._settings = observation.installation.settings
        self._draft = draft
        self._now = now

    def start(self, number: int) -> None:
        """The pods of an attempt, once all that they need is there."""
        if attempts.withdrawn(self._observation):
            self._draft.requeue.append(WITHDRAWN_RETRY_SECONDS)
            return
        if self._is_unfenced(ConditionType.ACCEPTED):
            return
        workload = self._workload(number)
        if workload is None or self._is_held_off(ConditionType.RUNNING):
            return
        status_fields.show_results(self._draft, workload)
        self._draft.actions += infrastructure.missing(self._observation, workload)
        lacks_address = workload.placement is Placement.SANDBOXED and not workload.cluster_ip
        if self._observation.job.status.placement is None or lacks_address:
            # The answers to what is written now bring the next look, and the Service's the address. Nothing runs before
            # it is written where: an operator that comes after this one might place the job elsewhere.
            return
        self._make_secrets(workload)
        self._draft.actions.append(CreateTogether(tuple(pods.job_pods(workload))))

    def keep_up(self, attempt: Attempt, workload: Workload) -> None:
        """Again what the running job needs and somebody removed, and hosts that were lost."""
        refusal = self._observation.refusal
        if refusal is None or not self._waits_after_refusal(refusal):
            self._draft.actions += infrastructure.missing(self._observation, workload)
        if workload.placement is Placement.COLOCATED:
            return
        useless = hosts.to_remove(self._observation, attempt, workload.cluster_ip, self._now)
        self._draft.actions += [cleanup.deletion(pod) for pod in useless]
        again = hosts.look_again_after(attempt, self._now)
        if again is not None:
            self._draft.requeue.append(again)
        absent = hosts.absent(self._observation, attempt, self._now)
        if absent and workload.cluster_ip and hosts.needs_hosts(self._observation, attempt):
            self._replace_hosts(attempt, workload, absent)

    def read_outcome(self, workload: Workload) -> None:
        """The pod that reads what the attempt's lost evaluator left."""
        if not self._is_held_off(ConditionType.RUNNING):
            self._draft.actions.append(CreateTogether((pods.outcome_pod(workload),)))

    def make_secrets_again(self, workload: Workload, missing: Container[str]) -> None:
        """Those of the job's own that the kubelet misses."""
        own = secrets.token_secrets(workload)
        self._draft.actions += [Create(manifest) for manifest in own if manifest["metadata"]["name"] in missing]

    def _make_secrets(self, workload: Workload) -> None:
        self._draft.actions += [Create(manifest) for manifest in secrets.token_secrets(workload)]

    def _workload(self, number: int) -> Workload | None:
        """The job as the builders need it; None while something that it names is missing."""
        inputs = self._observation.inputs
        if inputs is None:
            raise ValueError("pods are to be made from an observation without inputs")
        if inputs.missing:
            deadline = deadlines.of_inputs(self._settings.timeouts)
            self._draft.wait_for(inputs.missing, deadline, AcceptedReason.INPUTS_TIMEOUT)
            return None
        placement.show_accepted(self._draft)
        return workload_of(self._observation, self._draft.data, number)

    def _replace_hosts(self, attempt: Attempt, workload: Workload, ordinals: Iterable[int]) -> None:
        if self._must_do_without():
            return
        pauses = {n: hosts.pause_left(self._observation, attempt, n, self._now) for n in ordinals}
        self._draft.requeue += [pause for pause in pauses.values() if pause > 0]
        due = [ordinal for ordinal, pause in pauses.items() if pause <= 0]
        if not due or attempts.withdrawn(self._observation):
            return
        self._make_secrets(workload)
        # One by one: a refused one takes none of the others with it.
        self._draft.actions += [CreateTogether((pods.host_pod(workload, ordinal),)) for ordinal in due]

    def _must_do_without(self) -> bool:
        """Whether no host can be made now. While others take rollouts that is said, and ends nothing."""
        if not self._draft.is_true(ConditionType.SANDBOX_READY):
            return self._is_unfenced(ConditionType.SANDBOX_READY) or self._is_held_off(ConditionType.SANDBOX_READY)
        refusal = self._observation.refusal
        why = self._another_sandbox() or self._still_unfenced()
        if why:
            sandbox_lacks.show(self._draft, AcceptedReason.SANDBOX_UNAVAILABLE, why)
            self._draft.requeue.append(INPUTS_RETRY_SECONDS)
        elif refusal is not None:
            sandbox_lacks.show(self._draft, refusal.reason, refusal.message)
        return bool(why) or (refusal is not None and self._waits_after_refusal(refusal))

    # What holds them off

    def _is_unfenced(self, shown_on: ConditionType) -> bool:
        """Whether the sandbox that the job was placed in is seen not to hold now: it waits, and never runs without."""
        another = self._another_sandbox()
        if another:
            self._draft.fail(AcceptedReason.SANDBOX_UNAVAILABLE, another)
            return True
        why = self._still_unfenced()
        if why:
            missing = Missing(AcceptedReason.SANDBOX_UNAVAILABLE, why)
            deadline = deadlines.of_admission(self._settings.timeouts)
            self._draft.wait_for(missing, deadline, missing.reason, shown_on)
        return bool(why)

    def _another_sandbox(self) -> str:
        return placement.another_sandbox(self._draft.data, self._settings.sandbox)

    def _still_unfenced(self) -> str:
        return placement.still_unfenced(self._draft.data, self._settings.sandbox, self._observation.standing)

    def _is_held_off(self, shown_on: ConditionType) -> bool:
        """Whether the API server's refusal of the pods is still to be waited out."""
        refusal = self._observation.refusal
        if refusal is None:
            return False
        deadline = deadlines.of_admission(self._settings.timeouts)
        left = self._draft.wait(refusal, deadline, refusal.reason, shown_on)
        if left > 0 and not self._waits_after_refusal(refusal):
            return False
        if left > 0:
            self._draft.requeue.append(left)
        return True

    def _waits_after_refusal(self, refusal: PodsRefused) -> bool:
        pause = seconds_since(self._now, refusal.retry_at)
        if pause > 0:
            self._draft.requeue.append(pause)
        return pause > 0
