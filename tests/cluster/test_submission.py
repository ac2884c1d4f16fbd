"""Submission against a real API server, through the real kubectl: what it stores is what was meant."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from nemo_helix_plugin.jobs.schemas import HelixJobStatus
from nhx_evals_sdk.agent_eval.runtimes.gym import GymAgentTaskRunner, GymRuntimeConfig, discover_gym_tasks
from nhx_evals_sdk.values.common import SecretRef

from devcluster import kubectl
from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.client.errors import Refused
from nhx_gym_operator.client.kubectl import Kubectl
from nhx_gym_operator.submission import FilesetRef, GymPlacement, JobNotCompletedError, TasksetRef, submit
from nhx_gym_operator.submission.runner import target_of_runner
from support.way_back import spec_of

HYDRA = {
    "nested": {"list": [1, -2.5, "text", None, True, {"key": "${policy_model_name}"}], "empty": {}, "null": None},
    "größe": "1.5",
    "large": 2**62,
}
GONE_SECONDS = 60
PLACEMENT = GymPlacement(environment=FilesetRef("files"), agent_ref_name="instance")


def runner() -> GymAgentTaskRunner:
    route = {
        "policy_base_url": "http://models.example.org/v1",
        "policy_api_key": "${oc.env:KEY}",
        "policy_model_name": "org/Name-3.2",
        "judge_base_url": "https://judge.example.org/v1",
        "judge_api_key": "not-used",
        "judge_model_name": "judge",
    }
    return GymAgentTaskRunner(
        config=GymRuntimeConfig(
            agent="simple_agent",
            agent_config="responses_api_agents/simple_agent/configs/simple_agent.yaml",
            resources_server="mcqa",
            num_repeats=3,
            concurrency=7,
            bind_resources_server=False,
            collection_timeout_s=12.5,
            reward_key="score",
            hydra_params=route | HYDRA,
            env_vars={"LANGUAGE": "de", "EMPTY": ""},
            env_secrets={"KEY": SecretRef("MODEL_KEY"), "TOOL_KEY": SecretRef("tool")},
        )
    )


@pytest.fixture
def submitted(kubeconfig: Path, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KUBECTL", str(kubectl.path()))
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"responses_create_params": {"input": "q"}, "answer": "ä"}) + "\n", encoding="utf-8")
    return submit(
        tasks=discover_gym_tasks(rows),
        target=runner(),
        placement=PLACEMENT,
        namespace=world.namespace,
        kubeconfig=str(kubeconfig),
    )


def test_what_the_api_server_stores_is_the_runner_that_was_submitted(submitted: Any):
    stored = AgentEvalJob.model_validate(submitted.job)
    back = spec_of(stored)
    given = target_of_runner(runner(), PLACEMENT)
    params = {name: value for name, value in back.target.hydra_params.items() if not name.endswith("_api_key")}
    assert params == {name: value for name, value in given.hydra_params.items() if not name.endswith("_api_key")}
    same = {"hydra_params", "env_secrets", "environment"}
    assert back.target.model_dump(exclude=same) == given.model_dump(exclude=same)
    assert back.target.environment == f"{submitted.namespace}/files"
    assert stored.spec.policy.api_key and stored.spec.policy.api_key.secret_key_ref.name == "model-key"
    assert set(stored.spec.target.gym.env_secrets) == {"TOOL_KEY"}


def test_a_namespace_that_does_not_exist_is_said_to_be_missing(kubeconfig: Path, world: Any, monkeypatch: Any):
    monkeypatch.setenv("KUBECTL", str(kubectl.path()))
    with pytest.raises(Refused, match="there is no namespace `nowhere`"):
        submit(tasks=TasksetRef("suite"), target=runner(), namespace="nowhere", kubeconfig=str(kubeconfig))


def test_the_stored_tasks_go_with_their_job(submitted: Any, kubeconfig: Path):
    user = Kubectl.find(str(kubeconfig), None, submitted.namespace)

    def config_maps() -> list[Any]:
        listed = user.json("get", "configmaps")["items"]
        return [item for item in listed if item["metadata"]["name"] != "kube-root-ca.crt"]

    (stored,) = config_maps()
    (line,) = stored["data"]["taskset.jsonl"].splitlines()
    assert json.loads(line)["metadata"]["gym_row_extras"] == {"answer": "ä"}
    assert submitted.get_job_status() is HelixJobStatus.CREATED

    user.text("delete", "aej", submitted.name)
    deadline = time.monotonic() + GONE_SECONDS
    while config_maps():
        assert time.monotonic() < deadline, "the ConfigMap outlived its job"
        time.sleep(0.2)
    with pytest.raises(JobNotCompletedError, match="is gone"):
        submitted.wait_until_done(timeout=30)
