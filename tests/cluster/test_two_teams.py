"""Two namespaces with one operator: what a job names is its own namespace's, and neither team feels the other."""

import pytest

from cluster.world import World, condition
from nhx_gym_operator.controller.kube import CONFIG_MAPS, FILESETS, PODS, ApiError

ENVIRONMENT = {"gym": {"environment": {"fileSet": {"name": "theirs"}}}}


def rows(**source):
    return {"tasks": {"dataset": source}}


@pytest.fixture
async def other(world):
    """The other team's namespace."""
    other = World(world.api, f"{world.namespace}-other")
    await other.create_namespace()
    return other


@pytest.fixture
def operator(operating, world, other):
    with operating(watchNamespaces=[world.namespace, other.namespace]):
        yield


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (rows(configMap={"name": "theirs", "key": "rows.jsonl"}), "ConfigMapNotFound"),
        (rows(fileSet={"name": "theirs", "path": "rows.jsonl"}), "FileSetNotFound"),
        (rows(persistentVolumeClaim={"claimName": "theirs", "path": "rows.jsonl"}), "ClaimNotFound"),
        (ENVIRONMENT, "FileSetNotFound"),
        ({"results": {"persistentVolumeClaim": {"claimName": "theirs"}}}, "ClaimNotFound"),
    ],
    ids=["rows of a ConfigMap", "rows of a FileSet", "rows of a claim", "an environment", "a claim for results"],
)
async def test_what_the_other_team_has_is_not_there(world, other, operator, spec, reason):
    await other.create_config_map("theirs", **{"rows.jsonl": "{}"})
    await other.create_file_set("theirs", "theirs")
    await other.create_claim("theirs")
    await world.apply_job(**spec)
    job = await world.until_condition("Accepted", reason)
    said = condition(job, "Accepted")["message"]
    assert "'theirs'" in said and f"namespace {world.namespace!r}" in said
    assert await world.names(PODS) == []


async def test_no_name_is_a_way_into_the_other_namespace(world, other):
    """Not by the definitions, and not by the operator's own client, should an older definition let it in."""
    await other.create_config_map("theirs", **{"rows.jsonl": "{}"})
    await other.create_file_set("theirs", "theirs")
    for resource, plural, refused in (
        (CONFIG_MAPS, "configmaps", rows(configMap={"name": "", "key": "rows.jsonl"})),
        (FILESETS, "filesets", rows(fileSet={"name": "", "path": "rows.jsonl"})),
    ):
        name = f"../../{other.namespace}/{plural}/theirs"
        (source,) = refused["tasks"]["dataset"].values()
        source["name"] = name
        with pytest.raises(ApiError, match="should match"):
            await world.apply_job(**refused)
        with pytest.raises(ApiError) as absent:
            await world.api.get(resource, world.namespace, name)
        assert absent.value.not_found
        assert (await world.api.get(resource, other.namespace, "theirs"))["metadata"]["namespace"] == other.namespace


async def test_jobs_of_one_name_in_two_namespaces_have_nothing_in_common(world, other, operator):
    uids = {}
    for team in (world, other):
        await team.apply_job()
        uids[team] = (await team.until_condition("Running", "PodsCreated"))["metadata"]["uid"]
    tokens = []
    for team, its in ((world, uids[other]), (other, uids[world])):
        children = await team.children()
        assert {child["metadata"]["namespace"] for child in children.values()} == {team.namespace}
        assert its not in str(children), "a child knows the other team's job"
        for name, child in children.items():
            if name.startswith("NetworkPolicy/"):
                chosen = child["spec"]["podSelector"]["matchLabels"]
                assert chosen["evals.nhx.io/job-uid"] == uids[team]
        secrets = [child["data"] for name, child in children.items() if name.startswith("Secret/")]
        tokens.append({token for data in secrets for token in data.values()})
    assert all(tokens) and not tokens[0] & tokens[1]
    await world.delete_job()
    await world.until_no_pods()
    assert sorted(await other.names(PODS)) == ["mcqa-evaluator-1", "mcqa-host-0-1"]


async def test_what_one_team_lacks_does_not_hold_up_the_other(world, other, operator):
    await world.limit_pods(0)
    for number in range(3):
        await world.apply_job(f"stuck-{number}")
    for number in range(3):
        await world.until_condition("Running", "PodRefused", f"stuck-{number}")
    await other.apply_job()
    await other.until_condition("Running", "PodsCreated")


async def test_an_operator_leaves_a_namespace_alone_that_it_does_not_serve(world, other, operating):
    with operating():
        await other.apply_job()
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        assert "status" not in await other.job() and await other.names(PODS) == []
