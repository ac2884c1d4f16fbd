"""A pod whose node does not report: how it is told, until when it is waited for, and who gives it up."""

import pytest

from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.policies import lost_attempt, nodes
from nhx_gym_operator.controller.status_draft import StatusDraft
from support.controller_values import (
    NOW,
    accepted_status,
    after,
    condition,
    evaluator,
    host,
    installation,
    job,
    observe,
    running,
    workload,
)

TIMEOUTS = installation().settings.timeouts
DEFAULT = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for taint in ("not-ready", "unreachable")
]
"""What the API server adds to every pod (admission plugin DefaultTolerationSeconds)."""
FOR_EVER = [{"operator": "Exists"}]


def of(pod, *, ready, container="agent-evaluate", tolerations=DEFAULT):
    """A pod as it is once the node controller has called it `ready` or not; its container went on by the last word."""
    pod["status"]["containerStatuses"] = [{"name": container, "state": running(), "ready": True}]
    since = "2026-11-29T12:00:00Z"
    pod["status"]["conditions"] = [{"type": "Ready", "status": str(ready), "lastTransitionTime": since}]
    pod["spec"] = {**pod["spec"], "nodeName": "n1", "tolerations": tolerations}
    return pod


def away(**changes):
    return of(evaluator(workload(), phase="Running"), ready=False, **changes)


def shown(evaluating, *hosts, holds=True):
    status = accepted_status(conditions=[condition("Running", holds, "Collecting" if holds else "PodsCreated")])
    draft = StatusDraft(job(status=status), NOW)
    nodes.show(draft, Attempt(1, evaluating, hosts), TIMEOUTS, NOW)
    return draft


def test_a_node_that_is_away_is_named_with_the_moment_at_which_its_pod_is_given_up():
    entry = shown(away()).condition("Running")
    assert (entry["status"], entry["reason"]) == ("True", "NodeNotReady")
    for words in ("node 'n1'", "since 2026-11-29T12:00:00Z", "given up at 2026-11-29T12:05:00Z"):
        assert words in entry["message"]


def test_a_hosts_node_is_told_on_its_sandbox():
    there = of(evaluator(workload(), phase="Running"), ready=True)
    draft = shown(there, of(host(workload(), phase="Running"), ready=False, container="gym-host"))
    assert draft.condition("SandboxReady")["reason"] == "NodeNotReady"
    assert draft.condition("Running")["reason"] == "Collecting"


def test_a_pod_that_is_not_ready_by_its_own_word_is_on_a_node_that_reports():
    starting = away()
    starting["status"]["containerStatuses"][0]["ready"] = False
    assert shown(starting).condition("Running")["reason"] == "Collecting"


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [(DEFAULT, 300), ([], 900), (FOR_EVER, 900), ([*FOR_EVER, *DEFAULT], 300)],
    ids=["by default", "nothing borne", "borne for ever", "both"],
)
def test_a_pod_is_given_up_when_what_it_tolerates_is_over_and_never_waited_for_without_end(tolerations, seconds):
    assert nodes.given_up_at(away(tolerations=tolerations), TIMEOUTS, NOW) == after(seconds)


def test_what_the_cluster_leaves_there_is_given_up_by_the_operator():
    """For ever, as the pod tolerates it; or beyond that, since no node reports at all."""
    stays, goes = away(tolerations=FOR_EVER), away()
    assert lost_attempt.find(observe(), Attempt(1, stays), after(899)) is None
    assert lost_attempt.looks_again_after(observe(), Attempt(1, stays), after(899)) == [1]
    assert "has not reported since" in lost_attempt.find(observe(), Attempt(1, stays), after(900))
    assert lost_attempt.find(observe(), Attempt(1, goes), after(1199)) is None
    assert lost_attempt.looks_again_after(observe(), Attempt(1, goes), after(1199)) == [1]
    assert "given up at 2026-11-29T12:20:00Z" in nodes.words_of(goes, TIMEOUTS, after(301))
    assert "has not reported since" in lost_attempt.find(observe(), Attempt(1, goes), after(1200))
