"""Whether a cluster starts an evaluator's container again in its pod: real API servers say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.control_plane import control_plane
from cluster.world import World
from nhx_gym_operator.controller import app
from nhx_gym_operator.controller.kube import PODS, KubeClient, load_configuration

EVALUATOR = "mcqa-evaluator-1"
FEATURES_OFF = "--feature-gates=ContainerRestartRules=false,RestartAllContainersOnContainerExits=false"
"""The second one needs the first."""
RULES = [{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0, 1, 128]}}]


async def evaluators_container(world: World) -> dict:
    await world.until_pods(EVALUATOR)
    (container,) = (await world.api.get(PODS, world.namespace, EVALUATOR))["spec"]["containers"]
    return container


async def test_an_evaluator_asks_to_be_started_again_and_the_api_server_keeps_that(world, operator):
    await world.apply_job()
    assert (await evaluators_container(world))["restartPolicyRules"] == RULES


async def test_on_an_older_api_server_it_does_not_ask(world, operating, monkeypatch):
    """Which would refuse the pod."""
    monkeypatch.setattr(app, "RESTARTS_SINCE", (2, 0))
    with operating():
        await world.apply_job()
        assert not {"restartPolicy", "restartPolicyRules"} & (await evaluators_container(world)).keys()


@pytest.fixture
def without_the_feature(tmp_path: Path) -> Iterator[Path]:
    with control_plane(tmp_path, FEATURES_OFF) as kubeconfig:
        yield kubeconfig


async def test_an_api_server_without_the_feature_takes_the_pod_and_leaves_the_rules_out(
    world, operator, without_the_feature
):
    """By which the operator goes: such an evaluator is lost with its first end."""
    await world.apply_job()
    await evaluators_container(world)
    asked = await world.api.get(PODS, world.namespace, EVALUATOR)
    there = World(KubeClient(await load_configuration(str(without_the_feature))), "default")
    try:
        spec = {key: asked["spec"][key] for key in ("containers", "restartPolicy", "volumes")}
        pod = {"metadata": {"name": EVALUATOR, "namespace": "default"}, "spec": spec}
        await there.api.create({"apiVersion": "v1", "kind": "Pod", **pod})
        (kept,) = (await there.api.get(PODS, "default", EVALUATOR))["spec"]["containers"]
    finally:
        await there.api.close()
    assert asked["spec"]["containers"][0]["restartPolicyRules"] == RULES
    assert not {"restartPolicy", "restartPolicyRules"} & kept.keys()
