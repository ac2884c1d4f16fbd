"""By which cause an attempt counts as lost."""

from pathlib import Path

import pytest

from nhx_gym_operator.api.failure_policy import LossCause
from nhx_gym_operator.cli import conditions_page
from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.policies import loss_cause
from support.controller_values import CREATED, ended, evaluator, job, observe, running, workload

PAGE = Path(__file__).resolve().parents[3] / "docs/life-cycle.md"


def pod(reason="", disruption="", container=None, phase="Failed", deleted=False):
    states = {"agent-evaluate": container} if container else {}
    made = evaluator(workload(), states=states, phase=phase, deleted=deleted)
    if reason:
        made["status"]["reason"] = reason
    if disruption:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": disruption, "lastTransitionTime": CREATED}
        made["status"]["conditions"] = [*made["status"].get("conditions", ()), condition]
    return made


WAS = {
    "too much memory": (pod(container=ended(137, reason="OOMKilled")), "OOMKilled"),
    "too much memory under gVisor": (pod(container=ended(128, reason="OOMKilled")), "OOMKilled"),
    "node short of memory": (pod(reason="Evicted", container=ended(137, reason="Error")), "Evicted"),
    "node shuts down": (pod(reason="Terminated", disruption="TerminationByKubelet"), "Evicted"),
    "drained": (pod(disruption="EvictionByEvictionAPI", deleted=True), "Evicted"),
    "a higher priority": (pod(disruption="PreemptionByScheduler", deleted=True), "Preempted"),
    "a critical pod": (pod(reason="Preempting"), "Preempted"),
    "a taint": (pod(disruption="DeletionByTaintManager", phase="Running", deleted=True), "NodeLost"),
    "node deleted": (pod(disruption="DeletionByPodGC", container=running(), phase="Failed"), "NodeLost"),
    "somebody": (pod(container=ended(143, reason="Error"), deleted=True), "Deleted"),
    "a signal": (pod(container=ended(137, reason="Error")), "Killed"),
    "a signal, beside a container that goes on": (pod(container=ended(137, reason="Error"), phase="Running"), "Killed"),
    "an end without a word": (pod(), "Killed"),
}
by_cause = pytest.mark.parametrize(("of", "cause"), WAS.values(), ids=WAS)


@by_cause
def test_the_cause_is_what_kubernetes_says_of_the_pod(of, cause):
    assert loss_cause.find(observe(pods=(of,)), Attempt(1, of)) == cause


@by_cause
def test_a_pod_that_is_gone_is_judged_by_what_was_last_seen_of_it(of, cause):
    assert loss_cause.find(observe(pods=(), ghosts=(of,)), Attempt(1)) == cause


def test_a_pod_that_went_without_a_word_was_deleted_and_one_that_nobody_saw_is_unknown():
    went = pod(container=running(), phase="Running")
    assert loss_cause.find(observe(pods=(), ghosts=(went,)), Attempt(1)) == "Deleted"
    assert loss_cause.find(observe(pods=(), ghosts=(went,)), Attempt(2)) == "Unknown"


@pytest.mark.parametrize("deleted", [False, True])
def test_a_pod_of_whose_end_nobody_reports_is_lost_with_its_node(deleted):
    of = pod(container=running(), phase="Running", deleted=deleted)
    assert loss_cause.find(observe(pods=(of,)), Attempt(1, of)) == "NodeLost"


def test_a_condition_that_does_not_hold_says_nothing():
    of = pod(disruption="PreemptionByScheduler")
    of["status"]["conditions"][-1]["status"] = "False"
    assert loss_cause.find(observe(job(), pods=(of,)), Attempt(1, of)) == "Killed"


def test_the_page_has_each_cause_with_when_it_is_given():
    table = PAGE.read_text(encoding="utf-8").partition("| cause | when |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in table.splitlines() if line.startswith("| `")]
    assert {name.strip("`"): words for name, words in rows} == conditions_page.meanings(LossCause)
