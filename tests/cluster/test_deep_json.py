"""hydraParams take any shape, and the API server stores ten thousand levels of it: one job must not stop the others."""

import json

import pytest

from cluster.world import condition
from nhx_gym_operator.controller.kube import JOBS
from support.controller_values import spec

MARK = '"in its place"'


async def apply_deep_job(world, levels):
    """As text: Python's own writer stops long before the API server does."""
    manifest = {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": "deep", "namespace": world.namespace},
        "spec": spec(gym={"hydraParams": {"a": json.loads(MARK)}}),
    }
    text = json.dumps(manifest).replace(MARK, '{"a":' * levels + "1" + "}" * levels)
    path = world.api._path(JOBS, world.namespace)
    await world.api._request("POST", path, body=text.encode(), content_type="application/yaml")


@pytest.mark.parametrize("levels", [100, 900, 4000])
async def test_a_job_nested_thousands_deep_is_refused_and_the_next_one_runs(world, operator, levels):
    await apply_deep_job(world, levels)
    await world.apply_job()
    refused = await world.until_condition("Failed", "InvalidSpec", "deep")
    assert "spec.target.gym.hydraParams are nested more than 64 levels deep" in condition(refused, "Failed")["message"]
    await world.until_condition("Running", "PodsCreated")


async def test_an_operator_that_finds_such_a_job_starts_all_the_same(world, operating):
    await apply_deep_job(world, 4000)
    with operating():
        await world.apply_job()
        await world.until_condition("Failed", "InvalidSpec", "deep")
        await world.until_condition("Running", "PodsCreated")
