"""The measurement against a real API server: the tests say what the kubelet and the canaries would."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from ipaddress import ip_address

from cluster.world import condition
from nhx_gym_operator.api.wire.reports import CanaryReport, Kernel
from nhx_gym_operator.controller.kube import CONFIG_MAPS, EVENTS, NODES, PODS, POLICIES

NAME = "op-canary"
LISTENER, CLIENT = f"{NAME}-listener", f"{NAME}-client"
NODE_KERNEL = Kernel(boot_id="boot-of-the-node", release="6.12.1")
OWN_KERNEL = Kernel(boot_id="boot-of-the-sandbox", release="4.19.0")
NO_START = {"startedAt": "2026-11-29T12:00:00Z"}
OPEN_CODE = 3


def measuring(world, **changes):
    return {"canary": {"name": NAME, "namespace": world.namespace, **changes}}


def ended(code: int, message: str):
    # Far ahead: the operator counts from here how long the other half may take.
    times = {"startedAt": "2126-11-29T12:00:00Z", "finishedAt": "2126-11-29T12:00:05Z"}
    return {"terminated": {"exitCode": code, "message": message, **times}}


async def outcome(world):
    if not await world.exists(CONFIG_MAPS, NAME):
        return {}
    return (await world.api.get(CONFIG_MAPS, world.namespace, NAME)).get("data") or {}


async def until_outcome(world, verdict):
    async def there():
        found = await outcome(world)
        return found if found.get("verdict") == verdict else None

    return await world.until(there, f"the outcome is {verdict}", lambda: outcome(world))


async def make_node(world) -> str:
    name = f"node-of-{world.namespace}"
    await world._post(NODES, {"metadata": {"name": name}})
    info = dict.fromkeys(
        ("machineID", "systemUUID", "osImage", "containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion"), "x"
    ) | {"operatingSystem": "linux", "architecture": "amd64"}
    info |= {"bootID": NODE_KERNEL.boot_id, "kernelVersion": NODE_KERNEL.release}
    await world.api.patch_status(NODES, None, name, {"status": {"nodeInfo": info}})
    return name


async def bind(world, pod, node):
    path = f"{world.api._path(PODS, world.namespace, pod)}/binding"
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"name": node}}
    await world.api._request("POST", path, body=body)


async def play(world, *, kernel=OWN_KERNEL, code=0, words="2 addresses refused after 1.0 s"):
    """The canaries' part in one measurement."""
    node = await make_node(world)
    await world.until_pods(LISTENER)
    await bind(world, LISTENER, node)
    address = {"podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}]}
    await world.report(LISTENER, {"canary-listen": {"running": NO_START}}, **address)
    await world.until_pods(CLIENT)
    assert await client_ports(world) == [8080, 8081], "the second port has to be open when the client starts"
    await bind(world, CLIENT, node)
    report = CanaryReport(kernel=kernel, listener_kernel=NODE_KERNEL, pids_limit="1024").model_dump_json()
    await world.report(CLIENT, {"canary-reach": ended(0, report), "canary-refused": {"running": NO_START}})

    async def shut():
        return await client_ports(world) == [8080]

    await world.until(shut, "the second port is forbidden", lambda: client_ports(world))
    states = {"canary-reach": ended(0, report), "canary-refused": ended(code, words)}
    await world.report(CLIENT, states, "Failed" if code else "Succeeded")


async def end(world):
    """What a kubelet does with a deleted pod. One that has ended goes without it."""

    async def told():
        pod = await world.api.get(PODS, world.namespace, LISTENER)
        return "deletionTimestamp" in pod["metadata"] and not await world.exists(PODS, CLIENT)

    await world.until(told, "the listener is told to end, and the client is gone", lambda: world.names(PODS))
    await world.kill(LISTENER)


async def client_ports(world):
    policy = await world.api.get(POLICIES, world.namespace, CLIENT)
    (rule,) = policy["spec"]["egress"]
    return [port["port"] for port in rule["ports"]]


async def test_a_job_waits_for_the_first_measurement_and_says_what_it_found(world, operating):
    with operating(**measuring(world)):
        await world.apply_job()
        await world.until_condition("Accepted", "SandboxNotMeasured", status="False")
        await play(world)
        job = await world.until_condition("Running", "PodsCreated")
        found = await until_outcome(world, "Holds")
        assert (found["kernel"], found["network"], found["pidsLimit"]) == ("Holds", "Holds", "1024")
        assert job["status"]["placement"] == "Sandboxed"
        assert f"node 'node-of-{world.namespace}'" in job["status"]["placementReason"]
        await end(world)
        fields = f"involvedObject.kind=ConfigMap,involvedObject.name={NAME}"
        (event,) = (await world.api.list(EVENTS, world.namespace, fields=fields))["items"]
        assert (event["type"], event["reason"]) == ("Normal", "SandboxHolds")
        await asyncio.sleep(2)
        assert not {LISTENER, CLIENT} & set(await world.names(PODS)), "the next one is due in an hour"


async def test_an_operator_that_starts_again_goes_on_with_the_measurement_and_lets_jobs_in_on_what_stands(
    world, operating
):
    with operating(**measuring(world)):
        await world.until_pods(LISTENER)
        first = await world.uid(PODS, LISTENER)
    with operating(**measuring(world)):
        await play(world)
        await until_outcome(world, "Holds")
        assert await world.uid(PODS, LISTENER) == first
        await end(world)
    await asyncio.sleep(1.1)  # what was found in the second of a start is of that start
    with operating(**measuring(world)):
        await world.apply_job()
        await world.until_condition("Running", "PodsCreated")
        await world.until_pods(LISTENER)


async def test_two_operators_measure_once(world, operating):
    with ExitStack() as both:
        for _ in range(2):
            both.enter_context(operating(**measuring(world)))
        await play(world)
        await until_outcome(world, "Holds")
        await end(world)
        await asyncio.sleep(2)
        assert not {LISTENER, CLIENT} & set(await world.names(PODS))


async def test_a_cluster_that_enforces_no_policy_refuses_what_must_be_sandboxed(world, operating):
    with operating(sandbox={"mode": "Required"}, **measuring(world)):
        await play(world, code=OPEN_CODE, words="evaluator-canary (10.1.0.7:8081, known to be up: it listens there)")
        await until_outcome(world, "Fails")
        await world.apply_job()
        job = await world.until_phase("Failed")
        failed = condition(job, "Failed")
        assert failed["reason"] == "SandboxUnavailable"
        assert "10.1.0.7:8081" in failed["message"] and "sandbox.mode" in failed["message"]
        assert not any(name.startswith("mcqa") for name in await world.names(PODS))


async def test_a_runtime_class_that_runs_on_the_nodes_kernel_refuses_an_environment(world, operating):
    with operating(**measuring(world)):
        await play(world, kernel=NODE_KERNEL)
        await until_outcome(world, "Fails")
        await world.apply_job(gym={"environment": {"fileSet": {"name": "mine"}}})
        job = await world.until_phase("Failed")
        failed = condition(job, "Failed")
        assert failed["reason"] == "EnvironmentNeedsSandbox"
        assert "is the node's" in failed["message"] and "sandbox.runtimeClassName" in failed["message"]
        assert not await world.exists(PODS, "mcqa-gym-tasks-1")


async def test_without_the_runtime_class_nothing_has_to_be_tried_and_nobody_waits(world, operating):
    with operating(sandbox={"runtimeClassName": "absent"}, **measuring(world)):
        await until_outcome(world, "Fails")
        assert not await world.exists(PODS, LISTENER)
        await world.apply_job()
        job = await world.until_condition("Running", "PodsCreated")
        assert job["status"]["placement"] == "Colocated"
        assert "sandbox.runtimeClassName" in job["status"]["placementReason"]


async def test_where_canaries_are_refused_jobs_wait_and_are_told_why(world, operating):
    await world.limit_pods(0)
    with operating(**measuring(world)):
        await world.apply_job()
        await until_outcome(world, "Unknown")
        job = await world.until_condition("Accepted", "SandboxNotMeasured")

        async def told():
            return "exceeded quota" in condition(await world.job(), "Accepted")["message"]

        await world.until(told, "the job names the quota", world.job)
        assert "placement" not in job["status"]


async def test_what_is_measured_belongs_to_the_config_map(world, operating):
    with operating(**measuring(world)):
        await world.until_pods(LISTENER)
        uid = await world.uid(CONFIG_MAPS, NAME)
        for resource in (PODS, POLICIES):
            live = await world.api.get(resource, world.namespace, LISTENER)
            assert [owner["uid"] for owner in live["metadata"]["ownerReferences"]] == [uid]


async def test_an_api_server_says_where_it_is_reached_beside_its_service(world):
    host, port = await world.api.own_address()
    assert ip_address(host) and 0 < port < 65536
