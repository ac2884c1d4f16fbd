"""How a job ends: by the evaluator's word, by losses, and what is done with its pods."""

import json
from dataclasses import replace

import pytest

from nhx_gym_operator.api.conditions import PodReason
from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.api.status import JobStatus
from nhx_gym_operator.api.wire.endpoints import EgressUse, Latency, ModelUsage, Notice, Progress, Stage
from nhx_gym_operator.api.wire.reports import Aggregate, FailureClass
from nhx_gym_operator.controller import events, podview
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.inputs import Inputs
from nhx_gym_operator.controller.observation import PodsRefused
from nhx_gym_operator.workloads import pods
from support.controller_values import (
    CREATED,
    NOW,
    UID,
    accepted_status,
    after,
    condition,
    condition_of,
    ended,
    evaluator,
    finished_evaluator,
    holds,
    host,
    job,
    kinds,
    live,
    observe,
    outcome,
    progress,
    running,
    with_status,
    workload,
)

EMPTY_DIR = {"results": {"emptyDir": {}}}
STARTED = {"agent-evaluate": running()}


def finished(result, code=0, **changes):
    return observe(pods=(finished_evaluator(workload(), result, code=code), host(workload())), **changes)


def test_every_rollout_recorded_is_complete():
    decision = decide(finished(outcome()), NOW)
    assert decision.status["phase"] == "Succeeded"
    assert condition_of(decision, "Complete")["reason"] == "AllRolloutsRecorded"
    assert condition_of(decision, "Degraded") is None
    assert condition_of(decision, "Running")["reason"] == "RunEnded"
    assert decision.status["completionTime"] == "2026-11-29T12:00:00Z"
    assert decision.status["coverage"] == 1.0
    assert decision.status["results"]["path"] == "attempt-1"


def test_an_uploaded_bundle_is_where_the_evaluator_says():
    result = outcome(results_location="s3://results/evals", results_path="team/mcqa-1/attempt-1")
    decision = decide(finished(result), NOW)
    assert decision.status["results"] == {"location": "s3://results/evals", "path": "team/mcqa-1/attempt-1"}


def test_a_failed_upload_fails_the_job_and_what_was_scored_stays():
    reward = Aggregate(name="gym_reward.reward", value=0.5, kind="range", unit="reward", count=10)
    message = "the bundle could not be uploaded: bucket 'results': no answer"
    result = outcome("Failed", reason="UploadFailed", message=message, upload_failed=True, aggregates=[reward])
    decision = decide(finished(result, code=1), NOW)
    assert decision.status["phase"] == "Failed"
    assert condition_of(decision, "Failed")["reason"] == "UploadFailed"
    assert condition_of(decision, "Failed")["message"] == message
    assert decision.status["reward"] == "0.50" and len(decision.status["aggregates"]) == 1


def test_a_failed_upload_of_a_bundle_that_a_claim_has_is_degraded():
    result = outcome(upload_failed=True, degraded=["the bundle could not be uploaded: no answer"])
    decision = decide(finished(result), NOW)
    assert decision.status["phase"] == "Succeeded"
    assert condition_of(decision, "Degraded")["reason"] == "UploadFailed"


def test_fewer_but_enough_is_complete_and_degraded():
    result = outcome(
        done=8,
        message="8 of 10 rollouts have a reward",
        degraded=["8 of 10 rollouts have a reward; missing: 2 model (400 Bad Request)"],
    )
    decision = decide(finished(result), NOW)
    assert decision.status["phase"] == "Succeeded"
    assert condition_of(decision, "Complete")["reason"] == "MinCoverageReached"
    degraded = condition_of(decision, "Degraded")
    assert degraded["reason"] == "RolloutsMissing"
    assert degraded["message"] == "8 of 10 rollouts have a reward; missing: 2 model (400 Bad Request)"
    assert decision.status["progress"]["summary"] == "10/10"
    assert decision.status["progress"]["failed"] == 2


def test_a_host_that_failed_to_start_leaves_no_sandbox_that_has_still_to_be_shown():
    result = outcome("Failed", done=0, reason="HostStartupFailed", message="gym host 0 cannot start Gym: no agent")
    ended = condition_of(decide(finished(result, code=1), NOW), "SandboxReady")
    assert (ended["status"], ended["reason"]) == ("False", "HostStartupFailed")
    assert ended["message"] == "gym host 0 cannot start Gym: no agent"


def test_a_job_that_ends_before_gym_answered_does_not_say_that_it_still_waits_for_it():
    result = outcome("Failed", done=0, reason="DatasetInvalid", message="line 3")
    ended = condition_of(decide(finished(result, code=1), NOW), "SandboxReady")
    assert (ended["status"], ended["reason"]) == ("False", "RunEnded")


def test_missing_aggregates_degrade_a_complete_job():
    decision = decide(finished(outcome(degraded=["runner.gym aggregates missing: no host left"])), NOW)
    assert condition_of(decision, "Degraded")["reason"] == "AggregatesMissing"
    assert holds(decision, "Complete")


def test_too_few_is_failed_with_what_was_scored_still_shown():
    scored = Aggregate(name="gym_reward.reward", value=0.5, kind="range", unit="reward", count=4)
    result = outcome("Failed", done=4, reason="CoverageTooLow", message="4 of 10", aggregates=[scored])
    decision = decide(finished(result, code=1), NOW)
    assert decision.status["phase"] == "Failed"
    assert condition_of(decision, "Failed")["reason"] == "CoverageTooLow"
    assert decision.status["aggregates"][0]["value"] == 0.5
    assert decision.status["reward"] == "0.50"
    assert decision.status["coverage"] == 0.4


def test_all_that_the_outcome_says_is_shown():
    score = Aggregate(
        name="gym_reward.reward", value=0.8, kind="range", unit="reward", count=10, mean=0.8, min=0, max=1, std_dev=0.4
    )
    result = outcome(
        aggregates=[score],
        aggregates_dropped=3,
        usage={
            "policy": ModelUsage(
                calls=10, total_tokens=120, latency_seconds=Latency(mean=1.5, p50=1.0, p99=4.0, max=4.2)
            )
        },
        versions={"nemo-gym": "0.5.0"},
        host_kernel="#1 SMP gVisor",
        environment_digest="sha256:ab",
        warnings=["white space around a key was left out"],
    )
    result.progress.egress = EgressUse(requests=3, refused=3)
    status = decide(finished(result), NOW).status
    assert status["aggregates"] == [
        {
            "name": "gym_reward.reward",
            "value": 0.8,
            "kind": "range",
            "unit": "reward",
            "count": 10,
            "mean": 0.8,
            "min": 0,
            "max": 1,
            "stdDev": 0.4,
        }
    ]
    assert status["aggregatesDropped"] == 3
    assert status["usage"]["policy"]["totalTokens"] == 120
    assert status["usage"]["policy"]["latencySeconds"] == {"mean": 1.5, "p50": 1.0, "p99": 4.0, "max": 4.2}
    assert (status["egress"]["requests"], status["egress"]["refused"], status["egress"]["passed"]) == (3, 3, [])
    assert status["ran"]["versions"] == {"nemo-gym": "0.5.0"}
    assert status["ran"]["hostKernel"] == "#1 SMP gVisor"
    assert status["ran"]["environmentDigest"] == "sha256:ab"
    assert status["reward"] == "0.80"


def test_warnings_stand_beside_the_verdict():
    decision = decide(finished(outcome(warnings=["5 rows, 1 distinct"])), NOW)
    assert "5 rows, 1 distinct" in condition_of(decision, "Complete")["message"]


COLLAPSED = Notice(type="RowsCollapsed", reason="DuplicateRows", message="5 rows, 1 distinct: use numRepeats")


def test_what_the_evaluator_noticed_about_the_dataset_is_a_condition_and_an_event_and_the_job_is_whole():
    result = outcome()
    result.progress.notices = [COLLAPSED, Notice(type="Failed", reason="Forged", message="not a notice")]
    decision = decide(finished(result), NOW)
    shown = condition_of(decision, "RowsCollapsed")
    assert (shown["status"], shown["reason"]) == ("True", "DuplicateRows") and "5 rows, 1 distinct" in shown["message"]
    assert decision.status["phase"] == "Succeeded" and not holds(decision, "Degraded") and not holds(decision, "Failed")
    raw = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "mcqa", "namespace": "team", "uid": UID}}
    (event,) = (
        each for each in events.of_transitions(raw, [], decision.status["conditions"]) if "distinct" in each["message"]
    )
    assert (event["type"], event["reason"]) == ("Warning", "DuplicateRows")


def test_a_notice_is_shown_while_the_job_still_runs():
    pods = (evaluator(workload(), containers=STARTED), host(workload()))
    decision = decide(observe(pods=pods, progress=progress(notices=[COLLAPSED])), NOW)
    assert holds(decision, "RowsCollapsed") and decision.status["phase"] == "Running"


DOUBT = Notice(type="ModelInDoubt", reason="KeyRefused", message="model policy's endpoint refuses the key")


def test_a_doubt_about_a_model_is_withdrawn_once_it_has_answered_and_not_before():
    pods = (evaluator(workload(), containers=STARTED), host(workload()))
    doubted = decide(observe(pods=pods, progress=progress(notices=[DOUBT])), NOW).status
    for calls, status, reason in ((0, "True", "KeyRefused"), (1, "False", "ModelsAnswer")):
        said = progress(usage={"policy": ModelUsage(calls=calls)})
        decision = decide(observe(job(status=doubted), pods=pods, progress=said), NOW)
        shown = condition_of(decision, "ModelInDoubt")
        assert (shown["status"], shown["reason"]) == (status, reason)


def test_a_doubt_that_was_settled_between_two_looks_is_withdrawn_by_the_outcome():
    pods = (evaluator(workload(), containers=STARTED), host(workload()))
    doubted = decide(observe(pods=pods, progress=progress(notices=[DOUBT])), NOW).status
    ended = (finished_evaluator(workload(), outcome(usage={"policy": ModelUsage(calls=3)})),)
    assert not holds(decide(observe(job(status=doubted), pods=ended), NOW), "ModelInDoubt")


def test_nothing_is_said_of_models_that_were_never_in_doubt():
    assert condition_of(decide(finished(outcome(usage={"policy": ModelUsage(calls=3)})), NOW), "ModelInDoubt") is None


def test_another_container_that_never_ends_does_not_hold_up_the_outcome():
    pod = finished_evaluator(workload(), outcome())
    pod["status"]["phase"] = "Running"
    pod["status"]["containerStatuses"].append({"name": "sidecar", "state": running()})
    assert decide(observe(pods=(pod,)), NOW).status["phase"] == "Succeeded"


# Losses


def lost(state, *, phase="Failed", owner=None, **changes):
    owner = owner or job(status=accepted_status())
    of = workload(owner)
    pods = (evaluator(of, states={"agent-evaluate": state}, phase=phase),)
    return observe(owner, of, pods=pods, inputs=Inputs(), **changes)


def gone(owner=None, **changes):
    return observe(owner or job(status=accepted_status()), pods=(), inputs=Inputs(), **changes)


KILLED_POD = evaluator(workload(), states={"agent-evaluate": ended(137, reason="OOMKilled")}, phase="Failed")
KILLED = encode_outcome(
    outcome("Failed", reason="EvaluatorLost", failure_class=FailureClass.KILLED, message="ended by SIGTERM")
).decode()
EARLY = encode_outcome(outcome("Running", done=3)).decode()


@pytest.mark.parametrize(
    "observation",
    [
        gone(ghosts=(KILLED_POD,)),
        gone(ghosts=(evaluator(workload()),)),
        lost(ended(137, reason="OOMKilled")),
        lost(ended(137, EARLY, reason="OOMKilled")),
        lost(ended(1, KILLED, reason="Error")),
        lost(ended(1, "Traceback: no outcome at all", reason="Error")),
    ],
    ids=[
        "killed and deleted",
        "deleted before it started",
        "killed",
        "killed with an early outcome",
        "terminated",
        "no outcome",
    ],
)
def test_a_lost_evaluator_is_followed_by_the_next_attempt_after_a_pause(observation):
    decision = decide(observation, NOW)
    assert decision.actions == () and decision.requeue_after == pytest.approx(10)
    assert (decision.status["attempt"], decision.status["lostAttempts"]) == (1, 1)
    assert decision.status["nextAttemptTime"] == "2026-11-29T12:00:10Z"
    assert decision.status["phase"] == "Starting"
    assert condition_of(decision, "Running")["reason"] == "EvaluatorLost"
    waiting = replace(observation, job=job(status=decision.status))
    early = decide(waiting, after(9))
    assert early.actions == () and early.status == decision.status
    later = decide(waiting, after(10))
    assert kinds(later)[-1] == "CreateTogether mcqa-evaluator-2 mcqa-host-0-2"
    assert later.status["lostAttempts"] == 1, "one loss is counted once"


def test_an_ignored_loss_is_counted_by_itself_and_a_final_one_ends_the_job():
    def decided(cause, action):
        rules = [{"action": action, "onLostAttempt": {"causes": [cause]}}]
        owner = job(status=accepted_status(), failurePolicy={"rules": rules}, backoffLimit=0)
        return decide(lost(ended(137, EARLY, reason="OOMKilled"), owner=owner), NOW)

    ignored = decided("OOMKilled", "Ignore")
    assert (ignored.status["ignoredAttempts"], "lostAttempts" in ignored.status) == (1, False)
    assert ignored.status["nextAttemptTime"] == "2026-11-29T12:00:10Z"
    final = decided("OOMKilled", "FailJob")
    assert final.status["phase"] == "Failed" and condition_of(final, "Failed")["reason"] == "FailurePolicy"
    assert condition_of(decided("Evicted", "Ignore"), "Failed")["reason"] == "BackoffLimitExceeded"


def test_an_attempt_that_runs_has_no_pause_before_it():
    second = workload(attempt=2)
    waited = accepted_status(lostAttempts=1, endedAttempt=1, nextAttemptTime="2026-11-29T12:00:00Z")
    decision = decide(observe(job(status=waited), second, pods=(evaluator(second), host(second))), NOW)
    assert decision.status["attempt"] == 2 and "nextAttemptTime" not in decision.status
    killed = lost(ended(137, EARLY), owner=job(status=decision.status))
    again = replace(killed, pods=(evaluator(second, states={"agent-evaluate": ended(137, EARLY)}, phase="Failed"),))
    assert decide(again, NOW).status["lostAttempts"] == 2


def test_the_pods_of_a_lost_attempt_go_before_new_ones_come():
    decision = decide(observe(pods=(KILLED_POD, host(workload()))), NOW)
    assert kinds(decision) == ["DeletePod mcqa-host-0-1"]
    going = decide(observe(pods=(KILLED_POD, host(workload(), deleted=True))), NOW)
    assert going.actions == () and going.requeue_after == pytest.approx(900, abs=61)


def test_a_terminating_evaluator_may_still_write_its_outcome():
    pods = (evaluator(workload(), states=STARTED, phase="Running", deleted=True), host(workload()))
    assert not [action for action in kinds(decide(observe(pods=pods), NOW)) if "evaluator" in action]


def test_pods_that_never_end_do_not_hold_the_job_for_ever():
    stuck = observe(
        job(
            status=accepted_status(
                conditions=[
                    condition("Accepted", True, "Accepted"),
                    condition("Running", False, "EvaluatorLost", CREATED),
                ]
            )
        ),
        pods=(KILLED_POD, host(workload(), deleted=True)),
    )
    assert condition_of(decide(stuck, after(900)), "Failed")["reason"] == "EvaluatorLost"


def test_a_pod_of_whose_end_nobody_speaks_is_named_with_the_moment_at_which_the_job_ends():
    told = host(workload(), deleted=True)  # its grace was over a minute before
    decision = decide(observe(pods=(KILLED_POD, told)), NOW)
    words = condition_of(decision, "Running")["message"]
    assert "pod 'mcqa-host-0-1' was told to end" in words and "until 2026-11-29T12:14:00Z" in words


def test_pods_are_given_their_time_to_end_however_long_the_job_has_waited_before():
    waited = [condition("Accepted", True, "Accepted"), condition("Running", False, "PodsCreated", CREATED)]
    late = observe(job(status=accepted_status(conditions=waited)), pods=(KILLED_POD, host(workload())))
    decision = decide(late, after(5000))
    assert kinds(decision) == ["DeletePod mcqa-host-0-1"] and decision.requeue_after == 900


def empty_dir(**status):
    return job(status=accepted_status(**status), **EMPTY_DIR)


RAN = [condition("Accepted", True, "Accepted"), condition("Running", True, "Collecting")]


@pytest.mark.parametrize(
    "observation",
    [
        gone(empty_dir(conditions=RAN)),
        gone(empty_dir()),
        gone(empty_dir(), ghosts=(evaluator(workload(), states=STARTED),)),
        gone(empty_dir(), ghosts=(evaluator(workload(), states=STARTED),), progress=progress(done=1)),
        lost(ended(137, EARLY, reason="OOMKilled"), owner=empty_dir()),
    ],
    ids=["was running", "nobody was looking", "last seen running", "had rollouts", "says itself"],
)
def test_results_in_an_empty_dir_are_lost_with_it_and_nothing_is_collected_twice(observation):
    decision = decide(observation, NOW)
    assert condition_of(decision, "Failed")["reason"] == "ResultsLost"
    assert "persistentVolumeClaim" in condition_of(decision, "Failed")["message"]
    assert decision.actions == ()


# An evaluator that is gone, and nobody saw how it ended

STARTED_POD = evaluator(workload(), states=STARTED, phase="Running")


def reader(state=None, phase="Pending", **changes):
    states = {"read-outcome": state} if state else None
    return with_status(live(pods.outcome_pod(workload())), states=states, phase=phase, **changes)


def said(code, message="", **changes):
    return reader(ended(code, message), "Succeeded" if code == 0 else "Failed", **changes)


FOUND = said(0, encode_outcome(outcome()).decode())
STILL_RUNNING = "its results hold what it recorded, and no outcome"


@pytest.mark.parametrize("ghosts", [(), (STARTED_POD,)], ids=["nobody was looking", "last seen running"])
def test_how_an_evaluator_had_ended_that_is_gone_is_read_from_its_claim_before_anything_is_judged(ghosts):
    decision = decide(gone(ghosts=ghosts), NOW)
    assert kinds(decision) == ["CreateTogether mcqa-outcome-1"]
    shown = condition_of(decision, "Running")
    assert (shown["status"], shown["reason"]) == ("False", "ReadingOutcome")
    assert "is gone" in shown["message"] and "persistentVolumeClaim/mcqa-results" in shown["message"]
    assert "lostAttempts" not in decision.status and "nextAttemptTime" not in decision.status
    reading = observe(job(status=decision.status), pods=(reader(running()),), ghosts=ghosts)
    again = decide(reading, NOW)
    assert again.actions == () and again.status == decision.status and again.requeue_after == 840


def test_the_hosts_of_an_evaluator_that_is_gone_are_ended_while_its_outcome_is_read():
    decision = decide(observe(pods=(host(workload()),)), NOW)
    assert kinds(decision) == ["DeletePod mcqa-host-0-1", "CreateTogether mcqa-outcome-1"]


def test_an_outcome_that_the_claim_holds_ends_the_job_and_nothing_is_collected_again():
    decision = decide(observe(pods=(FOUND,)), NOW)
    assert decision.status["phase"] == "Succeeded" and decision.actions == ()
    assert condition_of(decision, "Complete")["reason"] == "AllRolloutsRecorded"
    assert decision.status["coverage"] == 1.0 and "lostAttempts" not in decision.status


def test_a_failure_that_the_claim_holds_fails_the_job():
    failed = encode_outcome(outcome("Failed", done=4, reason="CoverageTooLow", message="4 of 10")).decode()
    decision = decide(observe(pods=(said(0, failed),)), NOW)
    assert condition_of(decision, "Failed")["reason"] == "CoverageTooLow"


def test_an_outcome_that_was_seen_before_the_pod_went_needs_no_reading():
    decision = decide(gone(ghosts=(finished_evaluator(workload(), outcome()),)), NOW)
    assert decision.status["phase"] == "Succeeded" and decision.actions == ()


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (said(3, STILL_RUNNING), STILL_RUNNING),
        (said(1, "outcome.json cannot be read: Input/output error"), "could not be read: outcome.json cannot be read"),
        (reader(phase="Failed"), "was ended"),
    ],
    ids=["only a journal", "unreadable", "evicted"],
)
def test_without_an_outcome_on_the_claim_the_next_attempt_collects_what_is_missing(pod, words):
    decision = decide(observe(pods=(pod,)), NOW)
    assert decision.status["lostAttempts"] == 1 and decision.status["nextAttemptTime"]
    assert words in condition_of(decision, "Running")["message"]
    waited = observe(job(status=decision.status), pods=(pod,), inputs=Inputs())
    assert kinds(decide(waited, after(11)))[-1] == "CreateTogether mcqa-evaluator-2 mcqa-host-0-2"


def test_a_claim_that_was_emptied_under_a_job_is_no_second_bill():
    recorded = accepted_status(progress={"done": 3, "failed": 1, "total": 10})
    decision = decide(observe(job(status=recorded), pods=(said(4, "its results hold nothing of this job"),)), NOW)
    assert condition_of(decision, "Failed")["reason"] == "ResultsLost"
    assert "4 rollouts were recorded" in condition_of(decision, "Failed")["message"]


def test_a_claim_that_went_with_its_evaluator_is_no_second_bill_either():
    decision = decide(gone(claim=None), NOW)
    assert condition_of(decision, "Failed")["reason"] == "ResultsLost"
    assert "claim" in condition_of(decision, "Failed")["message"] and decision.actions == ()


def test_a_reader_that_finds_no_node_is_named_and_given_up_when_its_time_is_over():
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    waiting = observe(pods=(reader(conditions=[unscheduled]),))
    decision = decide(waiting, NOW)
    assert condition_of(decision, "Running")["reason"] == "Unschedulable" and decision.actions == ()
    late = decide(waiting, after(900))
    assert late.status["lostAttempts"] == 1 and kinds(late) == ["DeletePod mcqa-outcome-1"]
    assert "0/1 nodes" in condition_of(late, "Running")["message"]


def test_a_reader_that_is_refused_is_asked_for_again_until_its_time_is_over():
    refused = gone(refusal=PodsRefused(PodReason.POD_REFUSED, "exceeded quota: pods", after(5)))
    decision = decide(refused, NOW)
    assert decision.actions == () and condition_of(decision, "Running")["reason"] == "PodRefused"
    assert kinds(decide(refused, after(6))) == ["CreateTogether mcqa-outcome-1"]
    assert condition_of(decide(refused, after(4000)), "Failed")["reason"] == "PodRefused"


@pytest.mark.parametrize(
    ("change", "phase"), [({"cancel": True}, "Cancelled"), ({"suspend": True}, "Suspended")], ids=["cancel", "suspend"]
)
def test_what_ends_a_jobs_pods_ends_the_reading_too(change, phase):
    owner = job(status=accepted_status(), **change)
    assert kinds(decide(observe(owner, pods=(reader(running()),)), NOW)) == ["DeletePod mcqa-outcome-1"]
    assert decide(observe(owner, pods=()), NOW).status["phase"] == phase


# Finished jobs

DONE = [
    condition("Accepted", True, "Accepted"),
    condition("Running", False, "RunEnded"),
    condition("Complete", True, "AllRolloutsRecorded"),
]


def over(pods, moment=NOW, owner=None):
    owner = owner or job(status=accepted_status(phase="Succeeded", conditions=DONE))
    return decide(observe(owner, pods=pods, service=None, policies=(), claim=None), moment)


def test_a_finished_job_is_left_alone_whatever_becomes_of_its_children():
    decision = over(())
    assert decision.actions == ()
    assert decision.status == job(status=accepted_status(phase="Succeeded", conditions=DONE)).status.to_dict()


def test_a_finished_job_is_left_alone_when_its_spec_changes():
    owner = job(status=accepted_status(phase="Succeeded", conditions=DONE), metadata={"generation": 2}, minCoverage=0.1)
    assert over((), owner=owner).status == owner.status.to_dict()


def test_hosts_that_do_not_end_by_themselves_are_removed_a_minute_after_the_evaluator():
    pods = (
        finished_evaluator(workload(), outcome()),
        host(workload(), states={"gym-host": running()}, phase="Running"),
    )
    early = over(pods, after(-30))
    assert early.actions == () and early.requeue_after == pytest.approx(30)
    assert kinds(over(pods, NOW)) == ["DeletePod mcqa-host-0-1"]


def test_an_evaluator_that_another_container_keeps_up_is_removed_a_minute_after_its_own_end():
    pod = finished_evaluator(workload(), outcome())
    pod["status"]["phase"] = "Running"
    pod["status"]["containerStatuses"].append({"name": "sidecar", "state": running()})
    assert over((pod,), after(-30)).actions == ()
    assert kinds(over((pod,), NOW)) == ["DeletePod mcqa-evaluator-1"]


def test_an_end_is_written_before_pods_are_removed():
    decision = decide(finished(outcome()), NOW)
    assert decision.actions == () and decision.requeue_after == 0.0


def test_a_colocated_job_ends_like_any_other():
    owner = job(status=accepted_status(placement="Colocated", isolation="ContainerOnly"))
    of = workload(owner, placement=Placement.COLOCATED, cluster_ip=None, runtime_class_name=None)
    result = outcome(progress=Progress(stage=Stage.DONE, attempt=1, done=10, total=10))
    decision = decide(observe(owner, of, service=None, pods=(finished_evaluator(of, result),)), NOW)
    assert decision.status["phase"] == "Succeeded"
    assert decision.status["ran"]["images"].keys() == {"evaluator"}


def test_aggregates_that_no_status_takes_are_counted_and_not_shown():
    long, twice = Aggregate(name="n" * 257, kind="scalar", unit="gym"), Aggregate(name="a", kind="scalar", unit="gym")
    status = decide(finished(outcome(aggregates=[twice, twice, long])), NOW).status
    assert [entry["name"] for entry in status["aggregates"]] == ["a"]
    assert status["aggregatesDropped"] == 2


def test_a_reward_of_any_size_fits_the_table():
    huge = Aggregate(name="gym_reward.reward", value=-1e300, kind="scalar", unit="reward")
    result = outcome(aggregates=[huge])
    assert decide(finished(result), NOW).status["reward"] == "-1.00e+300"


def test_what_a_program_printed_in_colour_or_turned_round_stands_plain_in_a_condition():
    result = outcome("Failed", message="\x1b[31mImportError\x1b[0m:\r\n\tno \u202emodule\u2066 \x07x")
    failed = condition_of(decide(finished(result, code=1), NOW), "Failed")
    assert failed["message"] == "ImportError:\n\tno module x"


@pytest.mark.parametrize(
    ("told", "field"),
    [
        (f'"progress": {{"stage": "done", "attempt": 1, "done": 5, "total": {10**30}}}', "progress"),
        ('"usage": {"policy": {"calls": -1}}', "usage"),
        (f'"usage": {{"policy": {{"calls": {10**30}}}}}', "usage"),
        ('"usage": {"policy": {"seconds": 1e400}}', "usage"),
        ('"aggregates": [{"name": "a", "value": 1e400, "kind": "k", "unit": "u"}]', "aggregates"),
        ('"progress": {"stage": "done", "attempt": 1, "egress": {"requests": -1}}', "egress"),
        ('"coverage": 7', "coverage"),
        (f'"results_path": "{"x" * 3000}"', "results"),
    ],
)
def test_numbers_that_no_status_takes_are_left_out_and_the_job_ends_all_the_same(told, field):
    progress_ = "" if "progress" in told else '"progress": {"stage": "done", "attempt": 1, "done": 5, "total": 5}, '
    state = ended(0, f'{{"state": "Complete", {progress_}{told}}}', CREATED)
    pod = evaluator(workload(), states={"agent-evaluate": state}, phase="Succeeded")
    decision = decide(observe(pods=(pod, host(workload()))), NOW)
    assert decision.status["phase"] == "Succeeded" and field not in decision.status
    json.dumps(decision.status, allow_nan=False)
    JobStatus.model_validate(decision.status)


def test_what_was_shown_before_stays_in_place_of_numbers_that_no_status_takes():
    shown = decide(observe(progress=progress(done=3)), NOW).status
    lies = progress(done=10**30)
    again = decide(observe(job(status=shown), progress=lies), NOW).status
    assert again["progress"] == shown["progress"] and again["progress"]["done"] == 3


def test_a_label_that_is_no_count_makes_no_attempt():
    pod = finished_evaluator(workload(), outcome())
    pod["metadata"]["labels"]["evals.nhx.io/attempt"] = "9" * 60
    assert podview.attempt(pod) == 0


def test_a_job_whose_namespace_ends_is_left_as_it_is_though_its_pods_are_gone():
    observation = gone(ghosts=(evaluator(workload()),))
    assert decide(observation, NOW).status != observation.job.status.to_dict()
    left = decide(replace(observation, namespace_ends=True), NOW)
    assert (left.status, left.actions) == (observation.job.status.to_dict(), ())
