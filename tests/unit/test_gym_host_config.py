from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nhx_gym_operator.api.gym_config import deep_merge, nested
from nhx_gym_operator.api.wire.plans import GymTarget, HostPlan
from nhx_gym_operator.gym_host import gym_config
from nhx_gym_operator.gym_host.gym_config import ConfigError, compose, require_runnable
from nhx_gym_operator.gym_host.launcher import failure_message
from support import stuck

SIMPLE_AGENT = "responses_api_agents/simple_agent/configs/simple_agent.yaml"
MCQA = "resources_servers/mcqa/configs/mcqa.yaml"


def agent(server: str) -> dict[str, Any]:
    return {"responses_api_agents": {"simple_agent": {"resources_server": {"name": server}}}}


def write(root: Path, path: str, content: dict[str, Any]) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(content))


@pytest.fixture
def gym(tmp_path: Path) -> Path:
    """An install root with what an image has: mcqa, simple_agent and two model types."""
    root = tmp_path / "site-packages"
    write(root, MCQA, {"mcqa": {"resources_servers": {"mcqa": {}}}, "mcqa_simple_agent": agent("mcqa")})
    write(root, "resources_servers/mcqa/configs/hard.yaml", {"mcqa": {"resources_servers": {"mcqa": {}}}})
    write(root, SIMPLE_AGENT, {"simple_agent": agent("???")})
    for model in ("vllm_model", "openai_model"):
        write(
            root,
            f"responses_api_models/{model}/configs/{model}.yaml",
            {"policy_model": {"responses_api_models": {model: {"base_url": "${policy_base_url}"}}}},
        )
    return root


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "environment"
    write(root, "nemo-environment.yaml", {"format": "native-v1", "config_paths": ["resources_servers/words/w.yaml"]})
    write(
        root,
        "resources_servers/words/w.yaml",
        {"words": {"resources_servers": {"words": {}}}, "words_agent": agent("words")},
    )
    return root


def plan(**target: Any) -> HostPlan:
    fields: dict[str, Any] = {
        "agent": "simple_agent",
        "agent_config": SIMPLE_AGENT,
        "resources_server": "mcqa",
        "model_type": "vllm_model",
        "bind_resources_server": True,
        "num_repeats": 1,
        "concurrency": 4,
        "startup_timeout_s": 240,
        "shutdown_grace_s": 30,
        "reward_key": "reward",
    }
    return HostPlan(
        job="j",
        uid="u",
        attempt=1,
        ordinal=0,
        evaluator_url="http://10.0.0.1:8080",
        target=GymTarget(**fields | target),
        models={"policy": "org/Name-3.2", "safety-judge": "judge-1"},
    )


def test_an_agent_that_the_resources_server_declares_needs_no_agent_config(gym: Path) -> None:
    config = compose(plan(agent_ref_name="mcqa_simple_agent"), install_root=gym).config
    assert config["config_paths"] == [MCQA, "responses_api_models/vllm_model/configs/vllm_model.yaml"]
    assert "simple_agent" not in config


def test_the_agents_own_instance_is_loaded_from_its_config_and_bound_to_the_resources_server(gym: Path) -> None:
    config = compose(plan(), install_root=gym).config
    assert config["config_paths"][0] == SIMPLE_AGENT
    assert config["simple_agent"] == {
        "responses_api_agents": {"simple_agent": {"resources_server": {"name": "mcqa"}}},
    }


def test_no_binding_is_made_when_the_job_turns_it_off(gym: Path) -> None:
    assert "simple_agent" not in compose(plan(bind_resources_server=False), install_root=gym).config


def test_hydra_params_win_over_the_binding_and_dotted_keys_are_paths(gym: Path) -> None:
    params = {
        "simple_agent.responses_api_agents.simple_agent.resources_server.name": "other",
        "policy_model": {"responses_api_models.vllm_model": {"extra_body": {"grammar": "g"}}},
        "policy_model.responses_api_models.vllm_model.extra_body.cache": False,
    }
    config = compose(plan(hydra_params=params), install_root=gym).config
    agents = config["simple_agent"]["responses_api_agents"]
    assert agents["simple_agent"]["resources_server"]["name"] == "other"
    model = config["policy_model"]["responses_api_models"]["vllm_model"]
    assert model["extra_body"] == {"grammar": "g", "cache": False}


def test_hydra_params_cannot_send_the_model_calls_past_the_gateway(gym: Path) -> None:
    params = {"policy_base_url": "http://elsewhere", "policy_api_key": "k", "policy_model_name": "m"}
    config = compose(plan(hydra_params=params), install_root=gym).config
    assert config["policy_base_url"] == "http://10.0.0.1:8080/models/policy/v1"
    assert config["policy_api_key"] == "${oc.env:NHX_HOST_TOKEN}"
    assert config["policy_model_name"] == "org/Name-3.2"


def test_a_package_that_gives_a_server_the_hosts_port_is_refused_and_a_parameter_mends_it(
    gym: Path, package: Path
) -> None:
    given = {"words": {"resources_servers": {"words": {"port": 8000}}}, "words_agent": agent("words")}
    write(package, "resources_servers/words/w.yaml", given)
    names = {"resources_server": "words", "agent_ref_name": "words_agent"}
    path = "words.resources_servers.words.port"
    words = rf"{path} is 8000, the port of the gym host itself.*by spec.target.gym.hydraParams"
    with pytest.raises(ConfigError, match=words) as refused:
        compose(plan(**names), install_root=gym, environment=package)
    stuck.assert_said(
        "An environment gives its server a port that is taken",
        failure_message(refused.value, out_of_memory_kills=0),
    )
    assert compose(plan(**names, hydra_params={path: 8010}), install_root=gym, environment=package)


def test_each_further_model_has_a_route_of_its_own(gym: Path) -> None:
    config = compose(plan(), install_root=gym).config
    assert config["safety_judge_base_url"] == "http://10.0.0.1:8080/models/safety-judge/v1"
    assert config["safety_judge_model_name"] == "judge-1"


def test_a_flavor_is_a_config_of_the_server_as_on_gyms_command_line(gym: Path) -> None:
    assert gym_config.asset_config("resources_servers", "mcqa/hard") == "resources_servers/mcqa/configs/hard.yaml"
    config = compose(plan(resources_server="mcqa/hard"), install_root=gym).config
    assert "resources_servers/mcqa/configs/hard.yaml" in config["config_paths"]


def test_a_missing_agent_config_is_refused_with_the_agents_that_exist(gym: Path) -> None:
    with pytest.raises(ConfigError, match=r"target\.gym\.agentConfig.*agentRefName to one of mcqa_simple_agent"):
        compose(plan(agent_config=None), install_root=gym)


def test_an_agent_reference_that_nothing_declares_is_refused_with_the_agents_that_exist(gym: Path) -> None:
    with pytest.raises(ConfigError, match="agentRefName to one of mcqa_simple_agent, simple_agent"):
        compose(plan(agent_ref_name="typo"), install_root=gym)


@pytest.mark.parametrize(
    ("field", "value"),
    [("resources_server", "nowhere"), ("model_type", "nowhere"), ("agent_config", "nowhere.yaml")],
)
def test_a_component_that_the_image_lacks_is_refused_by_its_field(gym: Path, field: str, value: str) -> None:
    name = {"resources_server": "resourcesServer", "model_type": "modelType", "agent_config": "agentConfig"}[field]
    with pytest.raises(ConfigError, match=rf"target\.gym\.{name}.*nowhere"):
        compose(plan(**{field: value}), install_root=gym)


def test_a_package_is_composed_by_the_stock_runtime_from_a_selection(gym: Path, package: Path) -> None:
    target = {"resources_server": "words", "agent_ref_name": "words_agent", "agent_config": None}
    composition = compose(plan(**target), install_root=gym, environment=package)
    assert "config_paths" not in composition.config
    assert composition.config["_nhx_environment_component_selection"] == {
        "agent_instance": "words_agent",
        "agent_config": None,
        "resources_server_instance": "words",
        "resources_server_config": "resources_servers/words/configs/words.yaml",
        "model_config": "responses_api_models/vllm_model/configs/vllm_model.yaml",
    }
    assert composition.components == {
        "resources_servers/words",
        "responses_api_agents/simple_agent",
        "responses_api_models/vllm_model",
    }


def test_a_built_in_agent_in_front_of_a_packages_server_is_bound_to_it(gym: Path, package: Path) -> None:
    config = compose(plan(resources_server="words"), install_root=gym, environment=package).config
    assert config["simple_agent"] == agent("words")
    assert config["_nhx_environment_component_selection"]["agent_config"] == SIMPLE_AGENT


def test_a_package_reroutes_no_model(gym: Path, package: Path) -> None:
    """Neither by an env.yaml, which Gym reads on a user's own machine, nor by a config that another one includes."""
    elsewhere = {"policy_base_url": "http://elsewhere/v1", "policy_model_name": "other"}
    target = {"resources_server": "words", "agent_ref_name": "words_agent"}
    before = compose(plan(**target), install_root=gym, environment=package)
    assert before.config["policy_base_url"].startswith(plan().evaluator_url)
    words = {"words": {"resources_servers": {"words": {}}}, "words_agent": agent("words")}
    write(package, "env.yaml", elsewhere)
    write(package, "resources_servers/words/w.yaml", words | elsewhere)
    # What is handed to Gym goes over what it reads from files.
    assert compose(plan(**target), install_root=gym, environment=package) == before
    model = {"policy_model": {"responses_api_models": {"vllm_model": {"base_url": "http://elsewhere/v1"}}}}
    write(package, "resources_servers/words/more.yaml", model)
    write(package, "resources_servers/words/w.yaml", words | {"config_paths": ["resources_servers/words/more.yaml"]})
    with pytest.raises(ConfigError, match=r"words/more\.yaml of the environment configures the model server"):
        compose(plan(**target), install_root=gym, environment=package)


def test_a_package_without_manifest_is_refused_naming_the_file(gym: Path, package: Path) -> None:
    (package / "nemo-environment.yaml").unlink()
    with pytest.raises(ConfigError, match=r"no nemo-environment\.yaml at its root"):
        compose(plan(), install_root=gym, environment=package)


def test_configs_that_a_config_includes_count_as_declared(gym: Path) -> None:
    write(gym, "resources_servers/outer/configs/outer.yaml", {"config_paths": [MCQA], "outer": {}})
    config = compose(plan(resources_server="outer", agent_ref_name="mcqa_simple_agent"), install_root=gym).config
    assert SIMPLE_AGENT not in config["config_paths"]


def test_a_server_without_virtual_environment_is_refused_with_what_it_lacks(gym: Path, tmp_path: Path) -> None:
    composition = compose(plan(), install_root=gym)
    venvs = tmp_path / "venvs"
    for name in composition.components - {"resources_servers/mcqa"}:
        (venvs / name / ".venv/bin").mkdir(parents=True)
        (venvs / name / ".venv/bin/python").touch()
    listing = tmp_path / "bundled-servers.json"
    listing.write_text(json.dumps({"resources_servers/mcqa": {"missing": ["torch>=2"]}}))
    with pytest.raises(ConfigError, match=r"cannot start resources_servers/mcqa \(torch>=2\)\."):
        require_runnable(composition, venvs, listing)


def test_the_jobs_variables_may_change_defaults_but_not_the_wiring() -> None:
    wanted = plan(env_vars={"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "1", "NHX_WORK_PATH": "/elsewhere", "CACHE": "/x"})
    result = gym_config.environment_variables(wanted, "{}", "token", environment=False, inherited={})
    assert result["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "1"
    assert result["CACHE"] == "/x"
    assert result["NHX_WORK_PATH"] == "/job/work"
    assert result["NHX_HOST_TOKEN"] == "token"
    assert "NEMO_GYM_VENV_DIR" not in result
    unasked = gym_config.environment_variables(plan(), "{}", "token", environment=False, inherited={})
    assert unasked["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"


def test_gyms_clients_find_the_proxy_of_a_job_that_may_reach_hosts_and_the_way_around_it() -> None:
    opened = plan().model_copy(update={"egress": True})
    result = gym_config.environment_variables(opened, "{}", "token", environment=False, inherited={})
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        assert result[name] == "http://nhx:token@10.0.0.1:8080"
    assert result["no_proxy"] == result["NO_PROXY"] == "localhost,127.0.0.1,::1,10.0.0.1"
    assert result["NHX_ENVIRONMENT_OFFLINE"] == "false"
    shut = gym_config.environment_variables(plan(), "{}", "token", environment=False, inherited={})
    assert not [name for name in shut if "proxy" in name.lower()] and shut["NHX_ENVIRONMENT_OFFLINE"] == "true"


def test_a_staged_environment_is_required_and_gets_writable_links() -> None:
    result = gym_config.environment_variables(plan(), "{}", "token", environment=True, inherited={})
    assert result["NHX_ENVIRONMENT_PATH"] == "/job/environment"
    assert result["NHX_ENVIRONMENT_PACKAGE_REQUIRED"] == "true"
    assert result["NEMO_GYM_VENV_DIR"] == "/job/work/venvs"


def test_lists_are_replaced_and_dicts_are_merged() -> None:
    assert deep_merge({"a": {"b": [1], "c": 1}}, {"a": {"b": [2]}}) == {"a": {"b": [2], "c": 1}}
    assert nested({"a.b": {"c.d": 1}, "a": {"e": 2}}) == {"a": {"b": {"c": {"d": 1}}, "e": 2}}
