"""Where hostile code connects to, from inside a sandbox: nowhere but to its own evaluator's one port, which is also a
proxy to the one host that the job may reach."""

from __future__ import annotations

from collections import Counter

import pytest

from e2e.installations import ALLOWED
from e2e.runs import rows_of
from security.scenarios import HostileRun
from support.job_watch import is_true

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


def test_the_proxy_leads_to_the_host_that_was_allowed_and_to_no_other(attacked: HostileRun) -> None:
    saw = attacked.saw("reach-by-proxy")
    assert saw.pop("by the variables") == saw.pop("request allowed") == 200
    assert saw.pop("without a token") == 407
    # The tunnel stands, and what is no TLS goes no further: the server's own 200 does not come back.
    assert saw.pop("tunnel allowed") in ([], ["200"])
    assert len(saw) == 12
    assert {name: answer for name, answer in saw.items() if answer not in (403, ["403"])} == {}


def test_every_request_through_the_proxy_is_a_line_of_the_bundle(attacked: HostileRun) -> None:
    assert attacked.bundle is not None
    (file,) = attacked.bundle.rglob("egress.jsonl")
    lines = rows_of(file)
    passed = [f"{line['host']}:{line['port']}" for line in lines if "why" not in line]
    assert passed == [ALLOWED, ALLOWED]
    refused = Counter(f"{line['host']}:{line['port']}" for line in lines if line["status"] == 403)
    # What other attacks ask of the metadata servers, by the variables, comes on top.
    assert len([host for host, times in refused.items() if times >= 2]) == 6, refused
    (plain,) = [line for line in lines if line["method"] == "CONNECT" and line["status"] == 200]
    assert "no TLS" in plain["why"]


def test_no_neighbour_answers_over_ipv6(attacked: HostileRun) -> None:
    saw = attacked.saw("ipv6-link-local")
    assert saw, "no interface was tried"
    assert not any(answer.startswith("answered") for answer in saw.values())


def test_no_packets_of_ones_own_making(attacked: HostileRun) -> None:
    assert "opened" not in attacked.saw("raw-socket").values()


def test_an_attacked_job_still_says_that_its_sandbox_was_checked(attacked: HostileRun) -> None:
    assert attacked.status["placement"] == "Sandboxed"
    assert any(is_true(state, "SandboxReady") for state in attacked.states)
