"""What a job is made of: names, owners, idempotence, what comes back and what must not be touched."""

import asyncio

import pytest

from cluster.world import condition, versions
from nhx_gym_operator.api import pod_rules
from nhx_gym_operator.controller.act import REAPPLY_SECONDS
from nhx_gym_operator.controller.kube import CLAIMS, JOBS, PODS, POLICIES, SECRETS, SERVICES

SANDBOXED = {
    "Pod/mcqa-evaluator-1",
    "Pod/mcqa-host-0-1",
    "Service/mcqa",
    "NetworkPolicy/mcqa-evaluator",
    "NetworkPolicy/mcqa-host",
    "PersistentVolumeClaim/mcqa-results",
}


async def started(world, name="mcqa", **changes):
    await world.apply_job(name, **changes)
    return await world.until_condition("Running", "PodsCreated", name)


async def test_a_sandboxed_job_has_these_children_and_no_others(world, operator):
    await started(world)
    children = await world.children()
    secrets = {name for name in children if name.startswith("Secret/")}
    assert children.keys() - secrets == SANDBOXED
    assert sorted(name.rsplit("-", 1)[0] for name in secrets) == ["Secret/mcqa-evaluator", "Secret/mcqa-host-0"]


async def test_every_child_is_owned_by_the_job_and_holds_up_no_deletion(world, operator):
    job = await started(world)
    for name, child in (await world.children()).items():
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"], name
        assert owner["controller"] is True and owner["blockOwnerDeletion"] is False, name
    assert "finalizers" not in job["metadata"]
    assert not any("kopf" in key for key in job["metadata"].get("annotations", {}))


async def test_a_colocated_job_is_one_pod(world, operating):
    with operating(sandbox={"mode": "Disabled"}):
        job = await started(world)
        assert job["status"]["placement"] == "Colocated"
        assert await world.names(PODS) == ["mcqa-gym-tasks-1"]
        assert await world.names(SERVICES) == []


async def test_looking_again_changes_nothing(world, operator):
    await started(world)
    before = versions(await world.children())
    status = (await world.job())["status"]
    for number in range(5):
        await world.annotate(JOBS, "mcqa", str(number))
        await asyncio.sleep(0.3)
    assert versions(await world.children()) == before
    assert (await world.job())["status"] == status


async def test_an_operator_that_starts_again_changes_nothing(world, operating):
    with operating():
        job = await started(world)
        before = versions(await world.children())
    with operating():
        await asyncio.sleep(3)
        assert versions(await world.children()) == before
        assert (await world.job())["metadata"]["resourceVersion"] == job["metadata"]["resourceVersion"]


async def test_a_claim_that_is_to_stay_is_all_that_a_deleted_job_leaves(world, operator):
    retained = {"persistentVolumeClaim": {"size": "1Gi", "retention": "Retain"}}
    job = await started(world, results=retained)
    uid = job["metadata"]["uid"]
    claim = f"mcqa-results-{uid[:8]}"
    assert job["status"]["results"]["location"] == f"persistentVolumeClaim/{claim}"
    await world.delete_job()

    async def claim_alone():
        return list(await world.children()) == [f"PersistentVolumeClaim/{claim}"]

    await world.until(claim_alone, "everything but the claim is gone", world.children)
    again = await started(world, results=retained)
    names = await world.names(CLAIMS)
    assert sorted(names) == sorted([claim, f"mcqa-results-{again['metadata']['uid'][:8]}"])


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_deleting_a_job_leaves_nothing(world, operator, propagation):
    await started(world)
    await world.delete_job(propagation=propagation)

    async def nothing():
        return not await world.children() and not await world.exists(JOBS, "mcqa")

    await world.until(nothing, "everything is gone", world.children)


async def test_a_deleted_job_takes_its_pods_along_without_an_operator_too(world, operating):
    """What an administrator relies on who has scaled the operator to zero."""
    with operating():
        await started(world)
    await world.delete_job()
    await world.until_no_pods()


async def test_a_job_that_a_finalizer_holds_stops_at_once_and_makes_nothing_more(world, operator):
    await started(world, metadata={"finalizers": ["example.com/held"]})
    await world.delete_job()
    await world.until_no_pods()
    await world.remove(SERVICES, "mcqa")
    await asyncio.sleep(2)
    assert await world.names(PODS) == [] and await world.names(SERVICES) == []
    await world.set_finalizers("mcqa", [])


async def test_deleting_any_one_child_does_not_wedge_the_job(world, operator):
    await started(world)
    service = (await world.children())["Service/mcqa"]
    for resource, name in (
        (SERVICES, "mcqa"),
        (POLICIES, "mcqa-host"),
        (POLICIES, "mcqa-evaluator"),
        (CLAIMS, "mcqa-results"),
        (PODS, "mcqa-host-0-1"),
    ):
        first = await world.uid(resource, name)
        await world.remove(resource, name)

        async def another(resource=resource, name=name, first=first):
            return await world.uid(resource, name) not in (None, first)

        await world.until(another, f"{name} is made again")
    again = (await world.children())["Service/mcqa"]
    assert again["spec"]["clusterIP"] == service["spec"]["clusterIP"]
    assert (await world.job())["status"]["attempt"] == 1


async def test_an_evaluator_that_is_deleted_is_followed_by_the_next_attempt(world, operator):
    await started(world)
    for name in await world.names(SECRETS):
        await world.remove(SECRETS, name)
    await world.remove(PODS, "mcqa-evaluator-1")
    await world.until_pods("mcqa-evaluator-2", "mcqa-host-0-2")

    async def second():
        return (await world.job())["status"].get("attempt") == 2

    await world.until(second, "the second attempt is in the status", world.job)
    assert len(await world.names(SECRETS)) == 2
    assert await world.names(PODS) == ["mcqa-evaluator-2", "mcqa-host-0-2"]


async def test_of_three_hosts_the_one_that_is_lost_is_made_again_and_nothing_else(world, operator):
    await world.apply_job(hosts=3)
    pods = ["mcqa-evaluator-1", *(f"mcqa-host-{n}-1" for n in range(3))]
    await world.until_pods(*pods)
    secrets = sorted(name.rsplit("-", 1)[0] for name in await world.names(SECRETS))
    assert secrets == ["mcqa-evaluator", *(f"mcqa-host-{n}" for n in range(3))]
    job = await world.until_condition("Running", "PodsCreated")
    assert job["status"]["hosts"] == {"ready": 0, "desired": 3, "summary": "0/3"}
    before = {name: await world.uid(PODS, name) for name in pods}
    await world.remove(PODS, "mcqa-host-1-1")

    async def another():
        return await world.uid(PODS, "mcqa-host-1-1") not in (None, before["mcqa-host-1-1"])

    await world.until(another, "the host is made again")
    assert await world.names(PODS) == pods
    after = {name: await world.uid(PODS, name) for name in pods}
    assert {name for name in pods if after[name] != before[name]} == {"mcqa-host-1-1"}
    assert (await world.job())["status"]["attempt"] == 1


async def test_pods_of_several_hosts_that_a_quota_has_no_room_for_are_withdrawn_together(world, operator):
    await world.limit_pods(3)
    await world.apply_job(hosts=3)
    job = await world.until_condition("Running", "PodRefused")
    assert "exceeded quota" in condition(job, "Running")["message"]
    await world.until_no_pods()
    await world.limit_pods(4)
    await world.until_pods("mcqa-evaluator-1", *(f"mcqa-host-{n}-1" for n in range(3)))


async def test_an_object_of_somebody_else_is_named_left_alone_and_waited_for(world, operator):
    theirs = await world.create_service("mcqa")
    theirs_too = pod_rules.container("x", image="x", args=[], resources={}, mounts=[])
    await world._post(PODS, pod_rules.pod({"name": "mcqa-evaluator-1"}, containers=[theirs_too]))
    await world.apply_job()
    job = await world.until_condition("Running", "ChildNotOurs")
    assert "Service 'mcqa'" in condition(job, "Running")["message"]
    assert job["status"]["phase"] == "Pending"
    live = await world.api.get(SERVICES, world.namespace, "mcqa")
    assert live["spec"] == theirs["spec"] and "ownerReferences" not in live["metadata"]
    await world.remove(SERVICES, "mcqa")

    async def named():
        return "Pod 'mcqa-evaluator-1'" in condition(await world.job(), "Running")["message"]

    await world.until(named, "the pod is named", world.job)
    assert await world.names(PODS) == ["mcqa-evaluator-1"]
    await world.remove(PODS, "mcqa-evaluator-1")
    await world.until_phase("Starting")


async def test_long_names_that_differ_in_the_last_letter_have_children_of_their_own(world, operator):
    first, second = ("n" * 119 + letter for letter in "ab")
    await started(world, first)
    await started(world, second)
    assert len(await world.names(PODS)) == 4
    assert len(await world.names(SERVICES)) == 2


async def test_a_quota_that_refuses_one_pod_withdraws_the_other(world, operator):
    await world.limit_pods(1)
    await world.apply_job()
    job = await world.until_condition("Running", "PodRefused")
    assert "exceeded quota" in condition(job, "Running")["message"]
    assert job["status"]["phase"] == "Pending"
    assert "attempt" not in job["status"]
    await world.until_no_pods()
    await world.limit_pods(2)
    job = await world.until_phase("Starting")
    assert job["status"]["attempt"] == 1


async def test_jobs_that_fit_a_quota_one_after_the_other_never_hold_half_of_it_each(world, operator):
    await world.limit_pods(2)
    for name in ("one", "two"):
        await world.apply_job(name)

    async def one_runs():
        pods = await world.names(PODS)
        return len(pods) == 2 and len({pod.split("-")[0] for pod in pods}) == 1

    await world.until(one_runs, "one job has both its pods", lambda: world.names(PODS))
    (running,) = {pod.split("-")[0] for pod in await world.names(PODS)}
    await world.delete_job(running)
    other = "two" if running == "one" else "one"
    await world.until_phase("Starting", other)


async def test_a_namespace_that_ends_is_left_to_end(world, operating):
    # A role in the namespace would end with it.
    with operating(watchNamespaces=[]):
        await started(world)
        await world.delete_namespace()

        async def gone():
            return not await world.children()

        await world.until(gone, "the namespace is empty", world.children)


WIDENED = {
    "a label that no pod has": {"podSelector": {"matchLabels": {"somebody": "else"}}},
    "an expression that no pod fits": {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
    "a way out to everywhere": {"egress": [{}]},
    "a range of ports": None,
    "no way out at all to be judged": {"policyTypes": ["Ingress"]},
}


@pytest.mark.parametrize("change", WIDENED.values(), ids=WIDENED.keys())
async def test_a_policy_that_somebody_opened_is_shut_again(world, operator, change):
    await started(world)
    before = (await world.children())["NetworkPolicy/mcqa-host"]["spec"]
    if change is None:
        (rule,) = before["egress"]
        change = {"egress": [{**rule, "ports": [{**port, "endPort": 65535} for port in rule["ports"]]}]}
    await world._patch(POLICIES, "mcqa-host", {"spec": change})

    async def shut():
        return (await world.children())["NetworkPolicy/mcqa-host"]["spec"] == before

    await world.until(shut, "the policy is as it was", world.children, seconds=2 * REAPPLY_SECONDS)
    assert (await world.job())["status"]["attempt"] == 1
