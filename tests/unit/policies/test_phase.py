"""The phase, for every combination of conditions."""

import itertools

import pytest

from nhx_gym_operator.api.conditions import PodReason, StagedReason
from nhx_gym_operator.api.constants import Phase
from nhx_gym_operator.controller.policies.phase import phase
from support.controller_values import condition

STATES = {
    "Accepted": [None, (False, "ConfigMapNotFound"), (True, "Accepted")],
    "Staged": [None, (False, "Staging"), (False, "StagingFailed"), (True, "Staged")],
    "Running": [None, (False, "PodRefused"), (False, "ChildNotOurs"), (False, "PodsCreated"), (True, "Collecting")],
    "Suspended": [None, (False, "JobResumed"), (True, "JobSuspended")],
    "Complete": [None, (True, "AllRolloutsRecorded")],
    "Degraded": [None, (True, "RolloutsMissing")],
    "Failed": [None, (True, "CoverageTooLow")],
}


def expected(found):
    if found["Failed"]:
        return Phase.FAILED
    if found["Complete"]:
        return Phase.SUCCEEDED
    if found["Suspended"] and found["Suspended"][0]:
        return Phase.SUSPENDED
    if found["Running"] and found["Running"][0]:
        return Phase.RUNNING
    accepted = found["Accepted"] and found["Accepted"][0]
    no_pods = found["Running"] is None or found["Running"][1] in (PodReason.POD_REFUSED, PodReason.CHILD_NOT_OURS)
    if not accepted or no_pods:
        return Phase.PENDING
    if found["Staged"] and found["Staged"][1] == StagedReason.STAGING:
        return Phase.STAGING
    return Phase.STARTING


@pytest.mark.parametrize("states", list(itertools.product(*STATES.values())))
def test_the_phase_follows_from_the_conditions_alone(states):
    found = dict(zip(STATES, states, strict=True))
    conditions = [condition(kind, *state) for kind, state in found.items() if state]
    assert phase(conditions) is expected(found)
    assert phase(list(reversed(conditions))) is expected(found)


def test_a_job_that_nobody_looked_at_is_pending():
    assert phase([]) is Phase.PENDING
