"""decide: from one observation and the clock to a status and a short list of actions.

The order of a job's life stands here; each question on the way is answered by a module of `policies`, and its pods are
asked for in `making_pods`.
Pure: the same observation and time give the same decision, and an observation in which everything is as
it should be gives no action and the status that is already there.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from ..api.conditions import FINAL, AcceptedReason, ConditionType, RunReason, SandboxReason, StagedReason
from ..api.constants import Placement
from ..api.wire.reports import Outcome
from ..workloads import storage
from ..workloads.workload import Workload
from . import attempt as attempts
from . import podview, staging_reports, status_fields
from .attempt import Attempt
from .clock import format_time
from .decision_draft import DecisionDraft
from .inputs import Missing
from .making_pods import PodMaker, workload_of
from .observation import Decision, JobRefused, Observation
from .policies import (
    cleanup,
    deadlines,
    evaluator_end,
    expiry,
    hosts,
    job_deadlines,
    kept_outcome,
    lost_attempt,
    lost_hosts,
    nodes,
    placement,
    progress_source,
    retry,
    running,
    startup,
    stop,
    suspension,
    validation,
)
from .policies.stop import Stop

Manifest = dict[str, Any]


def decide(observation: Observation, now: datetime) -> Decision:
    """What should be for one job."""
    return _Decider(observation, now).decide()


class _Decider:
    """One decision in the making. Every step either ends it or lets the next one go on."""

    def __init__(self, observation: Observation, now: datetime) -> None:
        self.observation = observation
        self.job = observation.job
        self.settings = observation.installation.settings
        self.timeouts = self.settings.timeouts
        self.now = now
        self.draft = DecisionDraft(observation.job, now)
        self.pod_maker = PodMaker(observation, self.draft, now)

    def decide(self) -> Decision:
        if self.job.metadata.deletion_timestamp:
            return Decision(self.draft.data, cleanup.of_deleted(self.observation))
        if self.observation.namespace_ends:
            # The job goes with it, and whatever is written until then is for nobody.
            return Decision(self.draft.data)
        if any(self.draft.is_true(kind) for kind in FINAL):
            return self._finished()
        if self.observation.invalid:
            self._refuse(JobRefused(AcceptedReason.INVALID_SPEC, self.observation.invalid))
        else:
            self._live(attempts.current(self.observation))
        return self.draft.decision()

    def _live(self, attempt: Attempt) -> None:
        """A job that has not ended. Whatever it is at, what stops it comes first."""
        self.draft.staged = staging_reports.reports(attempt.evaluator)
        if suspension.is_wanted(self.observation, attempt):
            self._suspend(attempt)
            return
        suspension.show_not(self.draft, self.observation, attempt)
        self.draft.data.setdefault("startTime", format_time(self.now))
        if "podsStartTime" not in self.draft.data and startup.has_started(attempt):
            self.draft.data["podsStartTime"] = format_time(self.now)
        stopped = stop.find(self.observation, attempt, self.draft.data, self.now)
        if stopped:
            self._stop(attempt, stopped)
            return
        due = job_deadlines.of_job(self.job.spec, self.draft.data, self.now)
        self.draft.due = [deadline for deadline in due if not deadline.is_over]
        self.draft.requeue += [deadline.seconds_left for deadline in self.draft.due]
        if self._is_accepted():
            self._run(attempt)

    def _finished(self) -> Decision:
        """Nothing of the spec counts any more but how long the job stays."""
        left = expiry.seconds_left(self.observation, self.now)
        if left is not None and left <= 0:
            return Decision(self.draft.data, (expiry.deletion(self.observation),))
        actions, again = cleanup.of_finished(self.observation, self.now)
        due = [seconds for seconds in (left, again) if seconds is not None]
        return Decision(self.draft.data, actions, min(due, default=None))

    # Acceptance

    def _is_accepted(self) -> bool:
        """Pins the placement, once. False if the job is refused."""
        spec = self.job.spec
        if self.draft.data.get("placement"):
            forged = placement.refuse_pinned(spec, self.draft.data)
            return self._refuse(forged) if forged else True
        self.draft.data["model"] = spec.policy.model
        sandbox, observation = self.settings.sandbox, self.observation
        placed = placement.place(spec, sandbox, observation.runtime_class, observation.standing)
        if isinstance(placed, JobRefused):
            return self._refuse(placed)
        # What is refused in a sandbox is refused beside the evaluator too, so that it need not wait to be placed.
        where = Placement.SANDBOXED if isinstance(placed, Missing) else placed.placement
        refused = validation.refuse(spec, where, self.settings)
        if refused:
            return self._refuse(refused)
        if isinstance(placed, Missing):
            self.draft.wait_for(placed, deadlines.of_pods(self.timeouts), placed.reason)
            return False
        self.draft.data.update(placed.fields)
        return True

    def _refuse(self, refused: JobRefused) -> bool:
        self.draft.set(ConditionType.ACCEPTED, False, refused.reason, refused.message)
        self.draft.fail(refused.reason, refused.message)
        return False

    # The run

    def _run(self, attempt: Attempt) -> None:
        if attempt.number == 0 or (attempt.evaluator is None and attempt.number > (self.job.status.attempt or 0)):
            # Never complete so far; a host alone is what an interrupted start left.
            self.pod_maker.start(max(1, attempt.number))
            return
        self._show(attempt)
        is_over = self._is_over(attempt)
        if not is_over:
            self.draft.data.pop("nextAttemptTime", None)
            # An operator that made the pods may not have lived to say so.
            placement.show_accepted(self.draft)
        ended = evaluator_end.final_outcome(attempts.last_evaluator(self.observation, attempt))
        if ended and (stop.has_its_own_end(attempt) or not is_over):
            self._conclude(attempt, ended)
        elif is_over:
            self._follow(attempt)
        elif fault := self._fault(attempt):
            self.draft.fail(*fault)
        elif loss := lost_attempt.find(self.observation, attempt, self.now):
            self._after_loss(attempt, loss)
        else:
            self._go_on(attempt)

    def _conclude(self, attempt: Attempt, ended: Outcome) -> None:
        staging_reports.show(self.draft, attempt.evaluator)
        if ended.progress.hosts and ended.state == "Complete":
            self.draft.set(ConditionType.SANDBOX_READY, True, SandboxReason.HOST_READY, _HOST_WAS_READY)
        elif self._is_sandboxed and ended.reason in SandboxReason:
            self.draft.set(ConditionType.SANDBOX_READY, False, ended.reason, ended.message)
        self.draft.set(ConditionType.RUNNING, False, RunReason.RUN_ENDED, "the evaluator ended")
        status_fields.show_outcome(self.draft, ended)
        evaluator_end.conclude(self.draft, ended)
        self.draft.complete()

    def _fault(self, attempt: Attempt) -> tuple[StrEnum, str] | None:
        """A fault that another attempt would meet again."""
        words = staging_reports.failure(attempt.evaluator)
        if words:
            self.draft.set(ConditionType.STAGED, False, StagedReason.STAGING_FAILED, words)
            return StagedReason.STAGING_FAILED, words
        if self._is_sandboxed:
            records = lost_hosts.records(self.observation, attempt, self.now)
            status_fields.show_host_pods(self.draft, records.values())
        fault = hosts.find_fault(self.observation, attempt, self.now)
        if fault:
            self.draft.set(ConditionType.SANDBOX_READY, False, fault.reason, fault.message)
            return fault.reason, fault.message
        return None

    # An attempt that is lost

    def _after_loss(self, attempt: Attempt, loss: str) -> None:
        """It may have come to an end that nobody saw: what the evaluator kept is read before anything is judged."""
        if kept_outcome.may_be_kept(self.observation, attempt):
            kept = kept_outcome.found(attempt)
            if kept:
                self._conclude(attempt, kept)
                return
            words = self._answer_of_reader(attempt, loss)
            if words is None:
                return
            loss = f"{loss}; {words}"
        self._judge_loss(attempt, loss)

    def _answer_of_reader(self, attempt: Attempt, loss: str) -> str | None:
        """What a pod found that looked for a kept outcome in vain; None while there may still be one."""
        answer = kept_outcome.answer(attempt)
        if answer:
            return answer
        workload = workload_of(self.observation, self.draft.data, attempt.number)
        reading = f"{loss}; a pod reads from {storage.results_location(workload)} whether it had come to an end"
        self.draft.set(ConditionType.RUNNING, False, RunReason.READING_OUTCOME, reading)
        # However it had ended, these hosts are of no use any more.
        self.draft.actions += cleanup.of_running(attempt.hosts)
        if attempt.reader is None:
            self.pod_maker.read_outcome(workload)
            return None
        problem = kept_outcome.problem(self.observation, attempt)
        left = kept_outcome.seconds_left(self.observation, attempt, self.now)
        if left <= 0:
            why = f": {problem.message}" if problem else ""
            return f"whether it had ended was not read within {kept_outcome.bound(self.observation)}{why}"
        if problem:
            self.draft.set(ConditionType.RUNNING, False, problem.reason, f"{reading}; {problem.message}")
        self.draft.requeue.append(left)
        return None

    def _judge_loss(self, attempt: Attempt, loss: str) -> None:
        verdict = retry.judge(self.observation, attempt, loss, self.now)
        counts = {"lostAttempts": verdict.lost, "ignoredAttempts": verdict.ignored}
        self.draft.data |= {name: number for name, number in counts.items() if number}
        if verdict.again_at is None:
            self.draft.fail(verdict.reason, verdict.message)
            return
        self.draft.data["endedAttempt"] = attempt.number
        self.draft.data["nextAttemptTime"] = format_time(verdict.again_at)
        self._show_loss(verdict.reason, verdict.message)
        self._follow(attempt)

    def _show_loss(self, reason: StrEnum, words: str) -> None:
        """An attempt that is lost has no sandbox either, for the same reason."""
        self.draft.set(ConditionType.RUNNING, False, reason, words)
        if self._is_sandboxed:
            self.draft.set(ConditionType.SANDBOX_READY, False, reason, words)

    def _is_over(self, attempt: Attempt) -> bool:
        """Whether it was seen to be before, and is followed by another one, whatever its pods look like now."""
        return 0 < attempt.number <= self.draft.data.get("endedAttempt", 0)

    def _follow(self, attempt: Attempt) -> None:
        """The next attempt, once nothing of this one runs any more and its pause is over."""
        # Two evaluators on one journal would be worse than a wait.
        remaining, left = self._end_pods()
        if not remaining:
            pause = retry.seconds_left(self.draft.data, self.now)
            if pause > 0:
                self.draft.requeue.append(pause)
            else:
                self.pod_maker.start(attempt.number + 1)
            return
        limit = deadlines.of_pods(self.timeouts)
        if left > 0:
            self._show_unreported(attempt, remaining, self.draft.until(limit, left))
            return
        words = f"pods of attempt {attempt.number} have not ended within {limit} after their grace period"
        self.draft.fail(RunReason.EVALUATOR_LOST, words)

    def _show_unreported(self, attempt: Attempt, pods: Iterable[Manifest], until: str) -> None:
        """Of pods whose end is waited for: that one is late, since its node does not speak of it."""
        due = [(lost_attempt.seconds_to_report(pod, self.now), pod) for pod in pods if podview.is_terminating(pod)]
        self.draft.requeue += [left for left, _ in due if left > 0]
        late = next((pod for left, pod in due if left <= 0), None)
        if late:
            words = f"{lost_attempt.unreported(late)}; attempt {attempt.number + 1} follows once it is gone"
            self._show_loss(RunReason.EVALUATOR_LOST, words + until)

    # A job whose pods are to end

    def _stop(self, attempt: Attempt, why: Stop) -> None:
        self._show(attempt)
        stop.show_what_there_is(self.draft, self.observation, attempt)
        _, left = self._end_pods()
        if left > 0:
            runs = self.draft.is_true(ConditionType.RUNNING)
            self.draft.set(ConditionType.RUNNING, runs, why.ending, why.ending_words)
            return
        self.draft.fail(why.reason, stop.message(why, self.observation, self.draft.data))

    def _suspend(self, attempt: Attempt) -> None:
        self._show(attempt)
        if attempt.number:
            self.draft.data["endedAttempt"] = attempt.number
        if not self.draft.is_true(ConditionType.SUSPENDED):
            stop.show_what_there_is(self.draft, self.observation, attempt)
        _, left = self._end_pods()
        if left > 0:
            words = "spec.suspend is true; the pods are ending"
            self.draft.set(ConditionType.SUSPENDED, False, RunReason.SUSPENDING, words)
            return
        suspension.begin(self.draft)

    def _end_pods(self) -> tuple[list[Manifest], float]:
        """Has every pod end: those that have not yet, and the seconds for which that is still waited for."""
        remaining, deletions = cleanup.of_unended(self.observation)
        self.draft.actions += deletions
        left = deadlines.seconds_left_to_end(remaining, self.timeouts, self.now) if remaining else 0.0
        if left > 0:
            self.draft.requeue.append(left)
        return remaining, left

    def _show(self, attempt: Attempt) -> None:
        if attempt.number:
            self.draft.data["attempt"] = attempt.number
            status_fields.show_images(self.draft, attempt.pods)

    # Pods exist

    def _go_on(self, attempt: Attempt) -> None:
        workload = workload_of(self.observation, self.draft.data, attempt.number)
        status_fields.show_results(self.draft, workload)
        staging_reports.show(self.draft, attempt.evaluator)
        progress = self.observation.progress_of(attempt.number)
        if progress:
            status_fields.show_progress(self.draft, progress)
        if self._is_sandboxed:
            self._show_sandbox(attempt, workload.hosts)
        running.show(self.draft, self.observation, attempt, self.now)
        images = self.draft.data.get("ran", {}).get("images", {})
        self.draft.poll = progress_source.find(self.observation, attempt.evaluator, images)
        self.pod_maker.keep_up(attempt, workload)
        self._show_waiting(attempt, workload)
        nodes.show(self.draft, attempt, self.timeouts, self.now)
        self.draft.requeue += lost_attempt.looks_again_after(self.observation, attempt, self.now)

    def _show_sandbox(self, attempt: Attempt, desired: int) -> None:
        ready = hosts.readiness(self.observation, attempt, self.now)
        self.draft.set(ConditionType.SANDBOX_READY, ready.ready, ready.reason, ready.message)
        if "hosts" not in self.draft.data:
            status_fields.show_hosts(self.draft, 0, desired)

    def _show_waiting(self, attempt: Attempt, workload: Workload) -> None:
        """What keeps pods from running, and the end of a job that has waited for too long."""
        found = startup.waiting(self.observation, attempt, self.now)
        over = next((waiting for waiting in found if waiting.is_over), None)
        if over:
            self.draft.fail(over.end_reason, over.end_message)
            return
        startup.show(self.draft, found)
        self.draft.requeue += [waiting.seconds_left for waiting in found if waiting.seconds_left > 0]
        self.pod_maker.make_secrets_again(workload, {waiting.missing_name for waiting in found})

    @property
    def _is_sandboxed(self) -> bool:
        return self.draft.data["placement"] == Placement.SANDBOXED


_HOST_WAS_READY = "the gate passed and Gym answered"
