"""The pages' own specs and programs, as they stand there: only the platform's client has to become this product's."""

from __future__ import annotations

import json
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from nhx_evals_sdk.agent_eval.runtimes.gym import GymAgentTaskRunner, GymRuntimeConfig

from contract.pages import code
from nhx_gym_operator import submission
from nhx_gym_operator.api.models import ModelSpec
from nhx_gym_operator.submission.convert import job_of
from nhx_gym_operator.submission.errors import SubmissionError
from nhx_gym_operator.submission.spec_file import is_spec_file, parse_spec
from support.fake_kubectl import FakeKubectl

ROUTE = {"policy_base_url": "http://models.example.org/v1", "policy_api_key": "not-used", "policy_model_name": "m"}
POLICY = ModelSpec(name="policy", base_url="http://models.example.org/v1", model="org/name")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    fake = FakeKubectl(tmp_path / "cluster")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


def sent_job(cluster: FakeKubectl) -> dict[str, Any]:
    (job,) = [entry for entry in cluster.read("sent") if entry["kind"] == "AgentEvalJob"]
    return job


def specs(name: str) -> list[dict[str, Any]]:
    """Every whole spec that a page shows, in YAML or JSON."""
    blocks = [*map(yaml.safe_load, code(name, "yaml")), *map(json.loads, code(name, "json"))]
    return [block for block in blocks if isinstance(block, dict) and {"tasks", "target"} <= block.keys()]


def test_a_spec_of_the_pages_is_a_job_unless_it_names_an_agent_that_only_a_platform_knows() -> None:
    shown = [spec for name in ("gym-runner", "gym-custom-environment") for spec in specs(name)]
    registered = [spec for spec in shown if "agent" in spec["target"].get("source", {})]
    assert len(registered) == 2 and len(shown) == 3
    for spec in shown:
        assert is_spec_file(spec)
        if spec in registered:
            with pytest.raises(SubmissionError, match=r"agent.*registered on the platform"):
                parse_spec(spec, "spec.json")
        else:
            assert job_of(parse_spec(spec, "spec.json"), name="page").spec.policy.model


def test_a_hand_written_target_of_the_page_names_its_agent_in_one_field() -> None:
    (target,) = [block for block in map(json.loads, code("gym-runner", "json")) if "kind" in block]
    parsed = parse_spec({"tasks": "suite", "target": target | {"hydra_params": ROUTE}}, "spec.json")
    gym = job_of(parsed, name="page").spec.target.gym
    assert (gym.agent, gym.resources_server) == (target["source"]["component"], target["resources_server"])
    assert gym.agent_config == target["source"]["config"]


def platform(monkeypatch: pytest.MonkeyPatch, submit: Any) -> None:
    """The modules that the pages import from a platform's packages, made of what this product has."""
    evaluator = types.SimpleNamespace(submit=submit)

    class Evaluator:
        @staticmethod
        def from_client(_: object) -> types.SimpleNamespace:
            return evaluator

    class NemoClient:
        def __init__(self, **_: object) -> None:
            pass

    modules = {
        "nemo_evals.api.schemas": {"TasksetRef": submission.TasksetRef},
        "nemo_evals.filesets": {"FilesetRef": submission.FilesetRef},
        "nemo_evals.jobs.agent_spec": {"GymPlacement": submission.GymPlacement},
        "nemo_evals.sdk": {"Evaluator": Evaluator},
        "nemo_helix_plugin.client.client": {"NemoClient": NemoClient},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for package in ("nemo_evals", "nemo_evals.api", "nemo_evals.jobs"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))


def test_the_custom_environment_pages_program_submits_its_runner(
    cluster: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = [block for block in code("gym-custom-environment", "python") if "evaluator.submit(" in block]
    program = program.replace("job.wait_until_done()\n", "")
    platform(monkeypatch, partial(submission.submit, models=[POLICY], name="page"))
    names: dict[str, Any] = {}
    exec(compile(program, "gym-custom-environment.mdx", "exec"), names)

    gym = sent_job(cluster)["spec"]["target"]["gym"]
    assert gym["environment"] == {"fileSet": {"name": "my-gym-environment"}}
    assert gym["envSecrets"] == {
        "EXTERNAL_MODEL_API_KEY": {"secretKeyRef": {"name": "my-model-api-key", "key": "value"}}
    }
    assert (gym["agent"], gym["resourcesServer"]) == ("simple_agent", "custom_greeting")
    assert type(names["job"]).__name__ == "AgentEvaluatorJobResource"
    assert callable(names["job"].wait_until_done)
    assert not hasattr(names["job"], "get_result") and not hasattr(names["job"], "download_artifacts")


def test_a_callable_in_hydra_params_is_refused_at_once_by_runner_and_field(cluster: FakeKubectl) -> None:
    runner = GymAgentTaskRunner(
        config=GymRuntimeConfig(
            agent="simple_agent", agent_config="c.yaml", resources_server="mcqa", hydra_params=ROUTE | {"f": print}
        )
    )
    with pytest.raises(submission.UnsubmittableRunnerError) as refused:
        submission.submit(tasks=submission.TasksetRef("suite"), target=runner)
    assert "GymAgentTaskRunner" in str(refused.value) and "hydra_params.f" in str(refused.value)
    assert not (cluster.folder / "sent.json").exists()
