"""Hosts that a job asks for, as a user meets them at the API server."""

import pytest

from cluster.world import condition
from nhx_gym_operator.controller.kube import PODS, POLICIES, ApiError
from support.controller_values import plan_of

ALLOWED = {"egress": {"allow": ["*.example.org", "artifacts.example.internal:8443"]}}


async def test_a_host_that_is_not_allowed_is_refused_at_acceptance_with_the_setting(world, operating):
    with operating(sandbox=ALLOWED):
        await world.apply_job(egress={"allow": ["example.com"]})
        refused = condition(await world.until_phase("Failed"), "Accepted")
    assert refused["reason"] == "EgressNotAllowed" and refused["status"] == "False"
    assert "example.com" in refused["message"] and "sandbox.egress.allow" in refused["message"]
    assert await world.names(PODS) == []


async def test_a_host_that_is_allowed_is_told_to_the_evaluator_and_changes_no_policy(world, operating):
    with operating(sandbox=ALLOWED):
        await world.apply_job(egress={"allow": ["search.example.org"]})
        await world.until_phase("Starting")
    pod = await world.api.get(PODS, world.namespace, "mcqa-evaluator-1")
    assert plan_of(pod, "agent-evaluate", "NHX_EVALUATOR_PLAN")["egress"]["allow"] == ["search.example.org"]
    policy = await world.api.get(POLICIES, world.namespace, "mcqa-host")
    (rule,) = policy["spec"]["egress"]
    (peer,) = rule["to"]
    assert "evals.nhx.io/job-uid" in peer["podSelector"]["matchLabels"]


@pytest.mark.parametrize("entry", ["*", "https://example.org", "example.org:99999"])
async def test_an_entry_that_is_no_host_is_refused_by_the_api_server(world, entry):
    with pytest.raises(ApiError) as refused:
        await world.apply_job(egress={"allow": [entry]})
    assert "spec.egress.allow[0]" in refused.value.message
