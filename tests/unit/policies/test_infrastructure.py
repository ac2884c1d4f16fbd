"""What has to exist before a job's pods is made, and made again."""

import copy

import pytest

from nhx_gym_operator.api.conditions import PodReason
from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.controller.observation import PodsRefused
from nhx_gym_operator.controller.policies import infrastructure
from support.controller_values import NOW, SERVICE_IP, job, live_service, observe, workload


def missing(of=None, **changes):
    return infrastructure.missing(observe(**changes), of or workload())


def applied(*args, **changes):
    return [f"{each.manifest['kind']} {each.manifest['metadata']['name']}" for each in missing(*args, **changes)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"service": None}, ["Service mcqa"]),
        ({"policies": ()}, ["NetworkPolicy mcqa-host", "NetworkPolicy mcqa-evaluator"]),
        ({"claim": None}, ["PersistentVolumeClaim mcqa-results"]),
    ],
    ids=["nothing", "service", "policies", "claim"],
)
def test_what_was_deleted_is_made_again_and_nothing_else(changes, expected):
    assert applied(**changes) == expected


def test_a_colocated_job_has_no_service_and_one_with_an_empty_dir_no_claim():
    owner = job(results={"emptyDir": {}})
    colocated = workload(owner, placement=Placement.COLOCATED, cluster_ip=None, runtime_class_name=None)
    assert applied(colocated, service=None, policies=(), claim=None) == ["NetworkPolicy mcqa-evaluator"]


def test_a_service_made_again_keeps_the_address_that_a_host_knows():
    (action,) = missing(service=None)
    assert action.manifest["spec"]["clusterIP"] == SERVICE_IP


@pytest.mark.parametrize(
    "changes",
    [{"pods": ()}, {"refusal": PodsRefused(PodReason.POD_REFUSED, "provided IP is already allocated", NOW)}],
    ids=["no host", "somebody else has the address"],
)
def test_a_service_takes_any_address_if_none_is_known_or_the_known_one_was_refused(changes):
    (action,) = missing(service=None, **changes)
    assert "clusterIP" not in action.manifest["spec"]


def test_a_policy_that_was_loosened_by_hand_is_put_right():
    host, evaluator = observe().policies
    loose = copy.deepcopy(host)
    loose["spec"]["egress"].append({})
    assert applied(policies=(loose, evaluator)) == ["NetworkPolicy mcqa-host"]


def test_defaults_that_the_api_server_adds_are_no_drift():
    service = live_service(workload())
    service["spec"]["ports"][0]["nodePort"] = 0
    assert applied(service=service) == []
