"""Where a running evaluator is asked how far it is."""

import pytest

from nhx_gym_operator.controller.policies import progress_source
from support.controller_values import ended, evaluator, observe, running, workload

IMAGES = {"evaluator": "reg/nhx-tasks@sha256:00"}


def source(state, ip):
    pod = evaluator(workload(), states={"agent-evaluate": state}, phase="Running", ip=ip)
    return progress_source.find(observe(), pod, IMAGES)


@pytest.mark.parametrize(
    ("ip", "url"),
    [("10.1.0.5", "http://10.1.0.5:8080/progress"), ("fd00::5", "http://[fd00::5]:8080/progress")],
    ids=["IPv4", "IPv6"],
)
def test_a_running_evaluator_is_asked_at_its_pods_address(ip, url):
    found = source(running(), ip)
    assert (found.url, found.images) == (url, IMAGES)


def test_nobody_is_asked_who_does_not_run_or_has_no_address():
    assert source(ended(), "10.1.0.5") is None
    assert source(running(), None) is None
    assert progress_source.find(observe(), None, IMAGES) is None
