"""The examples hold together: what they refer to exists, and what they ship is valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from nhx_evals_sdk.agent_eval.runtimes.gym import discover_gym_tasks
from sandboxed_gym import environment_package

from nhx_gym_operator.api.job import AgentEvalJob

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORDCHECK = EXAMPLES / "wordcheck"

type Object = dict[str, Any]


def load(*files: str) -> list[Object]:
    return [obj for file in files for obj in yaml.safe_load_all((EXAMPLES / file).read_text(encoding="utf-8"))]


def one(objects: list[Object], kind: str) -> Object:
    (found,) = [obj for obj in objects if obj["kind"] == kind]
    return found


def generated(name: str) -> dict[str, Path]:
    """Keys of a ConfigMap that kustomize generates, with the file that each is from."""
    kustomization = load("wordcheck/kustomization.yaml")[0]
    assert kustomization["generatorOptions"] == {"disableNameSuffixHash": True}
    (entry,) = [entry for entry in kustomization["configMapGenerator"] if entry["name"] == name]
    pairs = [(key, path or key) for key, _, path in (file.partition("=") for file in entry["files"])]
    return {key: WORDCHECK / path for key, path in pairs}


def test_the_file_set_gives_every_file_of_the_environment_its_own_path():
    source = one(load("wordcheck/fileset.yaml"), "FileSet")["spec"]["source"]["configMap"]
    environment = WORDCHECK / "environment"
    files = {str(file.relative_to(environment)) for file in environment.rglob("*") if file.is_file()}
    assert {item["path"] for item in source["items"]} == {file for file in files if "__pycache__" not in file}
    keys = generated(source["name"])
    assert {item["key"]: environment / item["path"] for item in source["items"]} == keys


def test_the_environment_is_a_valid_package():
    package = environment_package.load_environment_package(WORDCHECK / "environment")
    components = environment_package.inspect_environment_components(package)
    assert components.resources_servers == frozenset({"wordcheck"})


def test_the_rows_are_twelve_tasks():
    reference = one(load("wordcheck/job.yaml"), "AgentEvalJob")["spec"]["tasks"]["dataset"]["configMap"]
    rows = generated(reference["name"])[reference["key"]]
    assert len(discover_gym_tasks(rows)) == 12


def test_the_job_routes_to_an_agent_that_the_environment_declares():
    gym = AgentEvalJob.model_validate(one(load("wordcheck/job.yaml"), "AgentEvalJob")).spec.target.gym
    config = load("wordcheck/environment/resources_servers/wordcheck/configs/wordcheck.yaml")[0]
    agent = config[gym.agent_ref_name]["responses_api_agents"][gym.agent]
    assert agent["resources_server"]["name"] == gym.resources_server
    assert (
        gym.environment
        and gym.environment.file_set.name == one(load("wordcheck/fileset.yaml"), "FileSet")["metadata"]["name"]
    )


@pytest.mark.parametrize("files", [["mcqa.yaml"], ["wordcheck/secret.yaml", "wordcheck/job.yaml"]], ids=str)
def test_a_job_finds_the_demo_model_and_its_key(files: list[str]):
    model = AgentEvalJob.model_validate(one(load(*files), "AgentEvalJob")).spec.policy
    served = load("demo-model/demo-model.yaml")
    service, deployment = one(served, "Service"), one(served, "Deployment")
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}:{service['spec']['ports'][0]['port']}"
    assert model.base_url == f"http://{host}/v1"
    secret, reference = one(load(*files), "Secret"), model.api_key.secret_key_ref
    assert secret["metadata"]["name"] == reference.name
    assert secret["stringData"][reference.key] == one(served, "Secret")["stringData"]["api-key"]
    assert deployment["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"] == "demo-model"
