"""The evaluator's address and the fences around the pods, value by value."""

from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.workloads import network
from support.controller_values import UID, job, settings, workload

EVALUATOR = {"evals.nhx.io/job-uid": UID, "evals.nhx.io/role": "evaluator"}
HOST = {"evals.nhx.io/job-uid": UID, "evals.nhx.io/role": "gym-host"}
OPERATOR = {"namespace": "operators", "labels": {"app": "op"}}


def port(number):
    return {"port": number, "protocol": "TCP"}


def test_the_service_publishes_addresses_that_are_not_ready():
    service = network.evaluator_service(workload())
    assert service["spec"] == {
        "type": "ClusterIP",
        "publishNotReadyAddresses": True,
        "selector": EVALUATOR,
        "ports": [
            {"name": "api", "port": 8080, "targetPort": 8080, "protocol": "TCP"},
            {"name": "canary", "port": 8081, "targetPort": 8081, "protocol": "TCP"},
        ],
    }


def test_a_service_made_again_asks_for_the_address_that_hosts_know():
    assert network.evaluator_service(workload(), "10.96.7.7")["spec"]["clusterIP"] == "10.96.7.7"


def test_a_host_has_one_way_in_and_one_way_out():
    host, _ = network.network_policies(workload())
    assert host["metadata"]["name"] == "mcqa-host"
    assert host["spec"] == {
        "podSelector": {"matchLabels": HOST},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": EVALUATOR}}], "ports": [port(8000)]}],
        "egress": [{"to": [{"podSelector": {"matchLabels": EVALUATOR}}], "ports": [port(8080)]}],
    }


def test_the_evaluators_side_lets_hosts_reach_the_canary_so_that_only_their_own_policy_refuses():
    _, evaluator = network.network_policies(workload())
    assert evaluator["spec"] == {
        "podSelector": {"matchLabels": EVALUATOR},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": HOST}}], "ports": [port(8080), port(8081)]}],
    }


def test_the_operators_pods_reach_the_api_and_nothing_else():
    _, evaluator = network.network_policies(workload(options=settings(operatorPodSelector=OPERATOR)))
    assert evaluator["spec"]["ingress"][1] == {
        "from": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "operators"}},
                "podSelector": {"matchLabels": {"app": "op"}},
            }
        ],
        "ports": [port(8080)],
    }


def test_an_administrators_egress_rules_keep_the_way_to_the_hosts_open():
    rule = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    _, evaluator = network.network_policies(workload(options=settings(evaluatorEgress=[rule])))
    assert evaluator["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert evaluator["spec"]["egress"] == [
        {"to": [{"podSelector": {"matchLabels": HOST}}], "ports": [port(8000)]},
        rule,
    ]


def test_a_colocated_pod_lets_only_the_operator_in():
    colocated = workload(
        job(), placement=Placement.COLOCATED, cluster_ip=None, options=settings(operatorPodSelector=OPERATOR)
    )
    (policy,) = network.network_policies(colocated)
    assert policy["spec"]["podSelector"]["matchLabels"]["evals.nhx.io/role"] == "colocated"
    assert len(policy["spec"]["ingress"]) == 1


def test_hosts_that_a_job_may_reach_change_nothing_of_its_policies():
    asking = workload(job(egress={"allow": ["artifacts.example.internal:8443"]}))
    assert network.network_policies(asking) == network.network_policies(workload())
