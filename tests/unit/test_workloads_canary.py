"""The canaries' pods and policies: like those of a job where it matters."""

from __future__ import annotations

import json

import pytest

from nhx_gym_operator.api.wire.plans import NODE_ADDRESSES_ENV
from nhx_gym_operator.workloads import canary as canaries
from nhx_gym_operator.workloads import network, podspec
from nhx_gym_operator.workloads import pods as job_pods
from nhx_gym_operator.workloads.canary import Canary
from support.controller_values import API, settings, workload

SETTINGS = settings(
    pods={"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "evals"}], "labels": {"team": "evals"}},
    resources={"gate": {"limits": {"memory": "99Mi"}}},
)
CANARY = Canary("op-canary", "operators", SETTINGS, "gvisor", API, 900.0, owner_uid="uid-of-map")
LISTENER, CLIENT = canaries.listener(CANARY), canaries.client(CANARY, "10.1.0.7")


@pytest.mark.parametrize("pod", [LISTENER, CLIENT], ids=["listener", "client"])
def test_a_canary_is_fenced_like_a_host_and_small(pod):
    host = job_pods.host_pod(workload(options=SETTINGS), 0)
    same = ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "nodeSelector", "tolerations")
    assert {name: pod["spec"][name] for name in same} == {name: host["spec"][name] for name in same}
    for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
        assert container["securityContext"] == host["spec"]["containers"][0]["securityContext"]
        assert container["image"] == SETTINGS.images.gym_host
        assert container["resources"] == {"limits": {"memory": "99Mi"}}
    assert pod["metadata"]["labels"]["team"] == "evals"


@pytest.mark.parametrize("pod", [LISTENER, CLIENT], ids=["listener", "client"])
def test_a_canary_is_no_child_of_a_job_goes_with_the_config_map_and_ends_by_itself(pod):
    assert "app.kubernetes.io/managed-by" not in pod["metadata"]["labels"]
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ConfigMap", "op-canary", "uid-of-map")
    assert pod["spec"]["activeDeadlineSeconds"] == 1920


def test_the_client_stands_where_a_host_does_and_the_listener_where_an_evaluator_does():
    assert CLIENT["spec"]["runtimeClassName"] == "gvisor" and CLIENT["spec"]["dnsPolicy"] == "None"
    assert "runtimeClassName" not in LISTENER["spec"]
    ports = [port["containerPort"] for port in LISTENER["spec"]["containers"][0]["ports"]]
    assert ports == [8080, 8081]


def test_the_client_is_to_find_refused_what_a_host_is():
    plan = json.loads(CLIENT["spec"]["containers"][0]["env"][0]["value"])
    assert plan["evaluator_url"] == "http://10.1.0.7:8080"
    assert [(target["host"], target["port"]) for target in plan["gate_refused"]] == [
        ("10.1.0.7", 8081),
        ("10.96.0.1", 443),
        ("192.0.2.1", 6443),
        ("node", 10250),
        ("169.254.169.254", 80),
        *((address, 80) for address in ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")),
    ]
    assert "[fd00::7]:8080" in str(canaries.client(CANARY, "fd00::7"))


def test_the_client_goes_beside_the_listener_where_it_can_and_keeps_the_administrators_affinity():
    mine = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}, "nodeAffinity": {}}
    options = settings(pods={"affinity": mine})
    canary = Canary("c", "n", options, None, API, 900.0)
    found = canaries.client(canary, "10.1.0.7")["spec"]["affinity"]
    own, beside = found["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert own == {"weight": 1} and found["nodeAffinity"] == {}
    listener = canaries.listener(canary)["metadata"]["labels"]
    assert beside["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= listener.items()
    assert len(options.pods.affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]) == 1


def test_shutting_takes_the_second_port_out_of_the_clients_policy_and_changes_nothing_else():
    (listener, open_), (same, shut) = canaries.policies(CANARY, shut=False), canaries.policies(CANARY, shut=True)
    assert listener == same
    assert open_["spec"]["egress"][0]["ports"] == network.tcp_ports(8080, 8081)
    assert shut["spec"]["egress"][0]["ports"] == network.tcp_ports(8080)
    open_["spec"]["egress"][0]["ports"] = shut["spec"]["egress"][0]["ports"]
    assert open_ == shut


def test_both_are_bound_both_ways_and_the_listener_leaves_the_refusing_to_the_client():
    listener, client = canaries.policies(CANARY, shut=True)
    for policy, pod in ((listener, LISTENER), (client, CLIENT)):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (rule,) = listener["spec"]["ingress"]
    assert rule["ports"] == network.tcp_ports(8080, 8081)
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= CLIENT["metadata"]["labels"].items()


def test_the_clients_rule_is_of_the_kind_that_hosts_get():
    host, _ = network.network_policies(workload())
    _, client = canaries.policies(CANARY, shut=True)
    (of_host,), (of_client,) = host["spec"]["egress"], client["spec"]["egress"]
    assert of_host["ports"] == of_client["ports"]
    assert [list(peer) for peer in of_host["to"]] == [list(peer) for peer in of_client["to"]] == [["podSelector"]]


def test_what_the_outcome_depends_on_makes_another_subject():
    def subject(runtime_class="gvisor", **changes):
        return Canary("c", "n", settings(**changes), runtime_class, API, 900.0).subject

    same = subject()
    assert subject(limits={"maxTokens": 5}) == same
    for other in (
        subject("kata"),
        subject(None),
        subject(images={"gymHost": "reg/mine:2"}),
        subject(pods={"nodeSelector": {"a": "b"}}),
    ):
        assert other != same


def test_a_canary_that_ends_without_a_message_is_spoken_for_by_its_log():
    for pod in (LISTENER, CLIENT):
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_container_at_the_gate_is_told_the_addresses_of_its_node():
    told = [pair for pair in CLIENT["spec"]["containers"][0]["env"] if pair["name"] == NODE_ADDRESSES_ENV]
    assert told == [podspec.node_addresses()]


def score(turn, node):
    """What a scheduler adds up for a node."""

    def meets(field):
        return (node in field["values"]) is (field["operator"] == "In")

    preferences = turn.preferences()
    return sum(p["weight"] for p in preferences if all(map(meets, p["preference"]["matchFields"])))


def test_a_canary_would_rather_go_where_it_never_was_then_where_it_was_longest_ago():
    turn = canaries.Turn(known=("newest", "middle", "oldest"))
    assert score(turn, "new") > score(turn, "oldest") > score(turn, "middle") == score(turn, "newest")
    assert canaries.Turn().preferences() == []


def test_a_canary_would_rather_go_where_something_failed_than_anywhere_else():
    turn = canaries.Turn(first=("bad",), known=("bad", "good"))
    assert score(turn, "bad") > score(turn, "new") > score(turn, "good")
