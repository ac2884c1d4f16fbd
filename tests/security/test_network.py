"""Where hostile code connects to, from inside a sandbox: nowhere but to its own evaluator's one port."""

from __future__ import annotations

from typing import Any

import pytest

from security.scenarios import HostileRun

OPEN_TO_ALL = {
    "api-server-service", "api-server-node", "kubelet", "node-port", "another-pod", "another-service",
    "lookalike-evaluator", "outside", "cluster-dns", "model-endpoint",
}  # fmt: skip
"""A pod without any policy connects to these: a refusal there is the policy's doing."""
FENCED_BY_THEIR_OWN = {
    "another-jobs-evaluator", "another-jobs-evaluator-pod", "another-jobs-host", "own-evaluators-second-port",
}  # fmt: skip
"""These answer their own peers, as both runs show, and refuse even the prober."""
WITHOUT_A_LISTENER = {"metadata", "unrouted"}
"""Nothing is known to listen here, so that a refusal proves nothing by itself: no route and no rule lets it through."""


@pytest.mark.parametrize("target", sorted(OPEN_TO_ALL | FENCED_BY_THEIR_OWN | WITHOUT_A_LISTENER))
def test_no_connection_leaves_the_sandbox(attacked: HostileRun, target: str) -> None:
    assert attacked.saw("reach-by-tcp")[target] != "connected"


def test_the_same_addresses_answer_a_pod_without_a_policy(attacked: HostileRun) -> None:
    seen = attacked.probed["reach-by-tcp"]
    assert {target for target in OPEN_TO_ALL if seen[target] != "connected"} == set()
    assert {target for target in FENCED_BY_THEIR_OWN if seen[target] == "connected"} == set()


def test_the_one_way_out_is_open_or_the_refusals_would_prove_nothing(attacked: HostileRun) -> None:
    assert attacked.saw("reach-by-tcp")["own-evaluator"] == "connected"


def test_no_listener_has_heard_of_the_sandbox(attacked: HostileRun) -> None:
    assert any(attacked.expected.values()), "the prober was not heard either"
    assert attacked.heard == attacked.expected


def test_no_datagram_is_answered_and_no_name_resolved(attacked: HostileRun) -> None:
    answers = attacked.saw("reach-by-udp")
    assert set(answers) == set(attacked.probed["reach-by-udp"]) == {"cluster-dns", "another-pod"}
    assert all(answer.startswith("answered") for answer in attacked.probed["reach-by-udp"].values())
    assert not any(answer.startswith("answered") for answer in answers.values())
    assert all(answer.startswith("not resolved") for answer in attacked.saw("resolve-a-name").values())


def test_no_neighbour_answers_over_ipv6(attacked: HostileRun) -> None:
    saw = attacked.saw("ipv6-link-local")
    assert saw, "no interface was tried"
    assert not any(answer.startswith("answered") for answer in saw.values())


def test_no_packets_of_ones_own_making(attacked: HostileRun) -> None:
    assert "opened" not in attacked.saw("raw-socket").values()


def test_an_attacked_job_still_says_that_its_sandbox_was_checked(hostile: dict[str, HostileRun]) -> None:
    run: Any = hostile["runc"]
    assert run.status["placement"] == "Sandboxed" and run.status["phase"] == "Succeeded"
