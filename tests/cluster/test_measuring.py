"""The measurement against a real API server: the tests say what the kubelet and the canaries would."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from cluster.world import World, condition
from nhx_gym_operator.api.constants import MEASUREMENT_LABEL, MEASUREMENT_OF_SANDBOX
from nhx_gym_operator.api.wire.reports import CanaryReport, Kernel
from nhx_gym_operator.controller.kube import CONFIG_MAPS, EVENTS, NODES, PODS, POLICIES, ApiError

NAME = "op-canary"
LISTENER, CLIENT = f"{NAME}-listener", f"{NAME}-client"
NODE_KERNEL = Kernel(boot_id="boot-of-the-node", release="6.12.1")
OWN_KERNEL = Kernel(boot_id="boot-of-the-sandbox", release="4.19.0")
NO_START = {"startedAt": "2026-11-29T12:00:00Z"}
OPEN_CODE = 3
OPEN = "evaluator-canary (10.1.0.7:8081, known to be up: it listens there)"
OFTEN = 15
"""Seconds between measurements: long enough to look at one outcome before the next."""


@pytest.fixture
async def operators(world):
    """The operator's own namespace: what it may do in that of the jobs is of no help here."""
    found = World(world.api, f"{world.namespace}-operators")
    await found.create_namespace()
    return found


def measuring(operators, **changes):
    return {"canary": {"name": NAME, "namespace": operators.namespace, **changes}}


def ended(code: int, message: str):
    # Far ahead: the operator counts from here how long the other half may take.
    times = {"startedAt": "2126-11-29T12:00:00Z", "finishedAt": "2126-11-29T12:00:05Z"}
    return {"terminated": {"exitCode": code, "message": message, **times}}


async def outcome(operators):
    if not await operators.exists(CONFIG_MAPS, NAME):
        return {}
    return (await operators.api.get(CONFIG_MAPS, operators.namespace, NAME)).get("data") or {}


async def until_outcome(operators, verdict):
    async def there():
        found = await outcome(operators)
        return found if found.get("verdict") == verdict else None

    return await operators.until(there, f"the outcome is {verdict}", lambda: outcome(operators))


async def make_node(operators, name) -> str:
    name = f"{name}-of-{operators.namespace}"
    try:
        await operators._post(NODES, {"metadata": {"name": name}})
    except ApiError as error:
        if not error.already_exists:
            raise
    info = dict.fromkeys(
        ("machineID", "systemUUID", "osImage", "containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion"), "x"
    ) | {"operatingSystem": "linux", "architecture": "amd64"}
    info |= {"bootID": NODE_KERNEL.boot_id, "kernelVersion": NODE_KERNEL.release}
    await operators.api.patch_status(NODES, None, name, {"status": {"nodeInfo": info}})
    return name


async def bind(operators, pod, node):
    path = f"{operators.api._path(PODS, operators.namespace, pod)}/binding"
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"name": node}}
    await operators.api._request("POST", path, body=body)


async def play(operators, *, kernel=OWN_KERNEL, code=0, words="2 addresses refused after 1.0 s", node="node"):
    """The canaries' part in one measurement, and what a kubelet does with pods that are deleted."""
    node = await make_node(operators, node)
    await operators.until_pods(LISTENER)
    await bind(operators, LISTENER, node)
    address = {"podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}]}
    await operators.report(LISTENER, {"canary-listen": {"running": NO_START}}, **address)
    await operators.until_pods(CLIENT)
    assert await client_ports(operators) == [8080, 8081], "the second port has to be open when the client starts"
    await bind(operators, CLIENT, node)
    report = CanaryReport(kernel=kernel, listener_kernel=NODE_KERNEL, pids_limit="1024").model_dump_json()
    await operators.report(CLIENT, {"canary-reach": ended(0, report), "canary-refused": {"running": NO_START}})

    async def shut():
        return await client_ports(operators) == [8080]

    await operators.until(shut, "the second port is forbidden", lambda: client_ports(operators))
    states = {"canary-reach": ended(0, report), "canary-refused": ended(code, words)}
    await operators.report(CLIENT, states, "Failed" if code else "Succeeded")


async def end(operators):
    """What a kubelet does with a deleted pod. One that has ended goes without it."""

    async def told():
        pod = await operators.api.get(PODS, operators.namespace, LISTENER)
        return "deletionTimestamp" in pod["metadata"] and not await operators.exists(PODS, CLIENT)

    await operators.until(told, "the listener is told to end, and the client is gone", lambda: operators.names(PODS))
    await operators.kill(LISTENER)


async def client_ports(operators):
    policy = await operators.api.get(POLICIES, operators.namespace, CLIENT)
    (rule,) = policy["spec"]["egress"]
    return [port["port"] for port in rule["ports"]]


async def test_a_job_waits_for_the_first_measurement_and_says_what_it_found(world, operators, operating):
    with operating(**measuring(operators)):
        await world.apply_job()
        await world.until_condition("Accepted", "SandboxNotMeasured", status="False")
        await play(operators)
        job = await world.until_condition("Running", "PodsCreated")
        found = await until_outcome(operators, "Holds")
        assert (found["kernel"], found["network"], found["pidsLimit"]) == ("Holds", "Holds", "1024")
        assert job["status"]["placement"] == "Sandboxed"
        assert f"node 'node-of-{operators.namespace}'" in job["status"]["placementReason"]
        await end(operators)
        fields = f"involvedObject.kind=ConfigMap,involvedObject.name={NAME}"
        (event,) = (await operators.api.list(EVENTS, operators.namespace, fields=fields))["items"]
        assert (event["type"], event["reason"]) == ("Normal", "SandboxHolds")
        await asyncio.sleep(2)
        assert not await operators.names(PODS), "the next one is due in an hour"


async def test_an_operator_that_starts_again_goes_on_with_the_measurement_and_lets_jobs_in_on_what_stands(
    world, operators, operating
):
    with operating(**measuring(operators)):
        await operators.until_pods(LISTENER)
        first = await operators.uid(PODS, LISTENER)
    with operating(**measuring(operators)):
        await play(operators)
        await until_outcome(operators, "Holds")
        assert await operators.uid(PODS, LISTENER) == first
        await end(operators)
    await asyncio.sleep(1.1)  # what was found in the second of a start is of that start
    with operating(**measuring(operators)):
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        await operators.until_pods(LISTENER)


async def test_two_operators_measure_once(operators, operating):
    with ExitStack() as both:
        for _ in range(2):
            both.enter_context(operating(**measuring(operators)))
        await play(operators)
        await until_outcome(operators, "Holds")
        await end(operators)
        await asyncio.sleep(2)
        assert not await operators.names(PODS)


async def test_a_cluster_that_enforces_no_policy_refuses_what_must_be_sandboxed(world, operators, operating):
    with operating(sandbox={"mode": "Required"}, **measuring(operators)):
        await play(operators, code=OPEN_CODE, words=OPEN)
        await until_outcome(operators, "Fails")
        await world.apply_job()
        job = await world.until_phase("Failed")
        failed = condition(job, "Failed")
        assert failed["reason"] == "SandboxUnavailable"
        assert "10.1.0.7:8081" in failed["message"] and "sandbox.mode" in failed["message"]
        assert not any(name.startswith("mcqa") for name in await world.names(PODS))


async def test_a_cluster_that_loses_enforcement_stops_admitting_and_says_so_on_jobs_old_and_new(
    world, operators, operating
):
    rows = {"dataset": {"configMap": {"name": "rows", "key": "rows.jsonl"}}}
    with operating(sandbox={"mode": "Required"}, **measuring(operators, intervalSeconds=OFTEN)):
        await play(operators)
        await until_outcome(operators, "Holds")
        await world.apply_job("early", tasks=rows)
        early = await world.until_condition("Accepted", "ConfigMapNotFound", name="early")
        assert early["status"]["placement"] == "Sandboxed", "it was let in on what held"
        await end(operators)
        await play(operators, code=OPEN_CODE, words=OPEN)
        await until_outcome(operators, "Fails")
        await world.apply_job("late")
        await world.create_config_map("rows", **{"rows.jsonl": "{}"})
        late = await world.until_phase("Failed", "late")
        assert "network policies are not enforced" in condition(late, "Failed")["message"]
        await end(operators)
        early = await world.until_condition("Accepted", "SandboxUnavailable", name="early", status="False")
        assert "network policies are not enforced" in condition(early, "Accepted")["message"]
        assert not await world.names(PODS)
        await play(operators)
        await until_outcome(operators, "Holds")
        await world.until_condition("Running", "PodsCreated", name="early")


async def test_the_next_measurement_asks_for_another_node_and_all_that_were_measured_are_named(
    world, operators, operating
):
    await make_node(operators, "never-measured")
    with operating(**measuring(operators, intervalSeconds=OFTEN)):
        await play(operators, node="one")
        found = await until_outcome(operators, "Holds")
        assert found["notMeasured"] and f"'one-of-{operators.namespace}'" not in found["notMeasured"]
        await end(operators)
        await operators.until_pods(LISTENER)
        pod = await operators.api.get(PODS, operators.namespace, LISTENER)
        wishes = pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (field,) = wishes[0]["preference"]["matchFields"]
        assert (field["operator"], field["values"]) == ("NotIn", [f"one-of-{operators.namespace}"])
        await play(operators, node="two")

        async def both():
            return len((await outcome(operators)).get("nodes", "").splitlines()) == 2

        await operators.until(both, "both nodes are in the outcome", lambda: outcome(operators))
        await world.apply_job()
        job = await world.until_condition("Running", "PodsCreated")
        for name in ("one", "two"):
            assert f"'{name}-of-{operators.namespace}'" in job["status"]["placementReason"]


async def test_a_job_that_finds_its_sandbox_open_has_it_measured_at_once_and_on_its_own_node(
    world, operators, operating
):
    with operating(**measuring(operators)):
        await play(operators)
        await until_outcome(operators, "Holds")
        await end(operators)
        await world.apply_job()
        await world.until_pods("mcqa-host-0-1")
        await bind(world, "mcqa-host-0-1", "where-it-was-open")
        await world.report("mcqa-host-0-1", {"sandbox-gate": ended(OPEN_CODE, OPEN)}, "Failed")
        await world.until_condition("Failed", "SandboxOpen")
        await operators.until_pods(LISTENER)
        pod = await operators.api.get(PODS, operators.namespace, LISTENER)
        (wish,) = pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (field,) = wish["preference"]["matchFields"]
        assert (field["operator"], field["values"]) == ("In", ["where-it-was-open"])


async def test_a_node_that_is_gone_takes_its_failure_with_it(operators, operating):
    with operating(**measuring(operators, intervalSeconds=OFTEN)):
        await play(operators, code=OPEN_CODE, words=OPEN, node="bad")
        await until_outcome(operators, "Fails")
        await end(operators)
        await operators._delete(NODES, f"bad-of-{operators.namespace}", namespaced=False)
        await play(operators, node="good")
        found = await until_outcome(operators, "Holds")
        assert "bad-of" not in found["nodes"]


async def test_a_runtime_class_that_runs_on_the_nodes_kernel_refuses_an_environment(world, operators, operating):
    with operating(**measuring(operators)):
        await play(operators, kernel=NODE_KERNEL)
        await until_outcome(operators, "Fails")
        await world.apply_job(gym={"environment": {"fileSet": {"name": "mine"}}})
        job = await world.until_phase("Failed")
        failed = condition(job, "Failed")
        assert failed["reason"] == "EnvironmentNeedsSandbox"
        assert "is the node's" in failed["message"] and "sandbox.runtimeClassName" in failed["message"]
        assert not await world.exists(PODS, "mcqa-gym-tasks-1")


async def test_without_the_runtime_class_nothing_has_to_be_tried_and_nobody_waits(world, operators, operating):
    with operating(sandbox={"runtimeClassName": "absent"}, **measuring(operators)):
        await until_outcome(operators, "Fails")
        assert not await operators.exists(PODS, LISTENER)
        await world.apply_job()
        job = await world.until_condition("Running", "PodsCreated")
        assert job["status"]["placement"] == "Colocated"
        assert "sandbox.runtimeClassName" in job["status"]["placementReason"]


async def until_told(world, words):
    """A job that waits for the measurement says so."""
    await world.until_condition("Accepted", "SandboxNotMeasured")

    async def told():
        return words in condition(await world.job(), "Accepted")["message"]

    await world.until(told, f"the job says {words!r}", world.job)


async def test_where_canaries_are_refused_jobs_wait_and_are_told_why(world, operators, operating):
    await operators.limit_pods(0)
    with operating(**measuring(operators)):
        await world.apply_job()
        await until_outcome(operators, "Unknown")
        await until_told(world, "exceeded quota")
        assert "placement" not in (await world.job())["status"]


async def test_a_canary_that_cannot_start_is_told_of_at_once_and_still_waited_for(world, operators, operating):
    with operating(**measuring(operators)):
        await world.apply_job()
        await operators.until_pods(LISTENER)
        waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
        await operators.report(LISTENER, {"canary-listen": waiting}, "Pending")
        await until_told(world, "no such image")
        await play(operators)
        await world.until_condition("Running", "PodsCreated")


async def test_a_canary_whose_sandbox_cannot_be_made_is_told_of_by_the_kubelets_event(world, operators, operating):
    with operating(**measuring(operators)):
        await world.apply_job()
        await operators.until_pods(LISTENER)
        about = {"kind": "Pod", "name": LISTENER, "namespace": operators.namespace}
        about["uid"] = await operators.uid(PODS, LISTENER)
        event = {"metadata": {"name": "said"}, "involvedObject": about, "type": "Warning"}
        event |= {"reason": "FailedCreatePodSandBox", "message": "no runtime for runsc"}
        await operators._post(EVENTS, event)
        await until_told(world, "no runtime for runsc")


async def test_a_deleted_outcome_is_made_again_and_measured_anew(operators, operating):
    with operating(**measuring(operators, intervalSeconds=OFTEN)):
        await play(operators)
        await until_outcome(operators, "Holds")
        await end(operators)
        await operators.remove(CONFIG_MAPS, NAME)
        await play(operators)
        await until_outcome(operators, "Holds")
        made = await operators.api.get(CONFIG_MAPS, operators.namespace, NAME)
        assert made["metadata"]["labels"][MEASUREMENT_LABEL] == MEASUREMENT_OF_SANDBOX


async def test_what_is_measured_belongs_to_the_config_map(operators, operating):
    with operating(**measuring(operators)):
        await operators.until_pods(LISTENER)
        uid = await operators.uid(CONFIG_MAPS, NAME)
        for resource in (PODS, POLICIES):
            live = await operators.api.get(resource, operators.namespace, LISTENER)
            assert [owner["uid"] for owner in live["metadata"]["ownerReferences"]] == [uid]


async def test_an_api_server_says_where_it_is_reached_beside_its_service(world):
    host, port = await world.api.own_address()
    assert ip_address(host) and 0 < port < 65536
