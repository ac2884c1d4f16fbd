"""Names of children: short enough, valid, and never shared by two jobs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nhx_gym_operator.api.constants import Placement, Role
from nhx_gym_operator.workloads import names

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
SUBDOMAINS = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,118}[a-z0-9])?", fullmatch=True)


def test_a_short_name_is_used_as_it_is():
    assert names.base_name("mcqa") == "mcqa"
    assert names.service_name("mcqa") == "mcqa"
    assert names.claim_name("mcqa") == "mcqa-results"
    assert names.policy_name("mcqa", Role.GYM_HOST) == "mcqa-host"
    assert names.policy_name("mcqa", Role.EVALUATOR) == "mcqa-evaluator"
    assert names.policy_name("mcqa", Role.COLOCATED) == "mcqa-evaluator"
    assert names.evaluator_pod_name("mcqa", 2, Placement.SANDBOXED) == "mcqa-evaluator-2"
    assert names.evaluator_pod_name("mcqa", 2, Placement.COLOCATED) == "mcqa-gym-tasks-2"
    assert names.host_pod_name("mcqa", 0, 2) == "mcqa-host-0-2"


def test_long_names_that_differ_in_the_last_letter_do_not_meet():
    long = "n" * 119
    assert names.base_name(long + "a") != names.base_name(long + "b")


@pytest.mark.parametrize("job", ["a.b", "0day", "a" * 41, "9." + "x" * 60])
def test_a_name_that_no_service_may_have_becomes_one_that_it_may(job):
    assert LABEL.fullmatch(names.base_name(job))
    assert names.base_name(job) == names.base_name(job)


@given(SUBDOMAINS)
def test_every_name_of_a_job_gives_valid_names_of_children(job):
    base = names.base_name(job)
    assert LABEL.fullmatch(base) and len(base) <= 40
    assert len(names.evaluator_pod_name(job, 7, Placement.COLOCATED)) <= 63
    assert len(names.host_pod_name(job, 0, 7)) <= 63


def test_labels_select_a_roles_pods_of_every_attempt():
    labels = names.child_labels("uid", Role.GYM_HOST, 3)
    assert names.selector("uid", Role.GYM_HOST).items() <= labels.items()
    assert labels["evals.nhx.io/attempt"] == "3"
    assert labels["app.kubernetes.io/managed-by"] == "nhx-gym-operator"
