"""What becomes of pods when a job is over, being deleted, or to be tried again."""

import pytest

from nhx_gym_operator.controller.policies import cleanup
from support.controller_values import (
    NOW,
    after,
    ended,
    evaluator,
    finished_evaluator,
    host,
    observe,
    outcome,
    running,
    started_again,
    workload,
)

FINISHED = finished_evaluator(workload(), outcome())
AT_WORK = host(workload(), states={"gym-host": running()}, phase="Running")


def removed(*pods, moment=NOW):
    deletions, again = cleanup.of_finished(observe(pods=pods), moment)
    return [deletion.name for deletion in deletions], again


def test_hosts_that_do_not_end_by_themselves_are_removed_a_minute_after_the_evaluator():
    assert removed(FINISHED, AT_WORK, moment=after(-30)) == ([], pytest.approx(30))
    assert removed(FINISHED, AT_WORK) == (["mcqa-host-0-1"], None)


def test_pods_that_ended_stay_for_their_logs():
    done = host(workload(), states={"gym-host": ended()}, phase="Succeeded")
    assert removed(FINISHED, done, moment=after(10_000)) == ([], None)


def test_pods_of_a_job_that_the_operator_ended_are_removed_at_once():
    assert removed(evaluator(workload()), host(workload())) == (["mcqa-evaluator-1", "mcqa-host-0-1"], None)


def test_a_host_whose_gate_failed_stays_for_its_log_before_its_phase_says_so():
    failed = host(workload(), states={"sandbox-gate": ended(3)}, phase="Pending")
    assert removed(evaluator(workload()), failed) == (["mcqa-evaluator-1"], None)


def test_a_pod_that_was_told_to_end_is_not_told_again():
    assert removed(FINISHED, host(workload(), deleted=True)) == ([], None)


def test_a_deleted_job_stops_all_its_pods_at_once():
    pods = (evaluator(workload(), deleted=True), AT_WORK)
    assert [deletion.name for deletion in cleanup.of_deleted(observe(pods=pods))] == ["mcqa-host-0-1"]


def test_what_has_not_ended_is_told_to_once_and_counted_until_it_has():
    going, still = evaluator(workload(), phase="Running", deleted=True), AT_WORK
    pods, deletions = cleanup.of_unended(observe(pods=(going, still)))
    assert pods == [going, still] and [deletion.name for deletion in deletions] == ["mcqa-host-0-1"]
    assert cleanup.of_unended(observe(pods=(FINISHED,))) == ([], [])


def test_an_evaluator_that_the_kubelet_would_start_again_is_removed_at_once_and_hosts_keep_their_minute():
    killed = started_again(workload(restarts=True), ended(137, reason="OOMKilled"), 2)
    assert removed(killed, AT_WORK, moment=after(-30)) == (["mcqa-evaluator-1"], pytest.approx(30))
