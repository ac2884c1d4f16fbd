"""What hydraParams may not hold: what no pod can carry, what is a model's, and what is secret."""

import pytest

from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.controller.policies import hydra_params
from support.controller_values import job


def refusal(params, placement=Placement.SANDBOXED, **gym):
    return hydra_params.refusal(job(gym={"hydraParams": params, **gym}).spec, placement)


@pytest.mark.parametrize(
    ("param", "field"),
    [("policy_base_url", "baseUrl"), ("policy_api_key", "apiKey"), ("policy_model_name", "model")],
)
def test_a_model_route_in_hydra_params_is_refused_with_the_field_it_belongs_in(param, field):
    refused = refusal({param: "sk-very-secret"})
    assert param in refused and f"spec.models[name=policy].{field}" in refused
    assert "sk-very-secret" not in refused


def test_hydra_params_that_no_pod_could_carry_are_refused_with_their_size():
    refused = refusal({"a": "x" * 70_000})
    assert "65536" in refused


def nested(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def test_hydra_params_that_no_serialiser_could_follow_are_refused():
    refused = refusal({"a": [nested(5000)]})
    assert "64 levels" in refused
    assert refusal(nested(64)) is None


def test_a_port_that_is_taken_in_gyms_pod_is_refused_by_its_path_with_who_has_it():
    port = "mcqa.resources_servers.mcqa.port"
    refused = refusal({port: 8000})
    assert refused.startswith(f"spec.target.gym.hydraParams.{port} is 8000, the port of the gym host itself")
    assert "the port of the evaluator itself" in refusal({port: "8080"}, Placement.COLOCATED)
    assert refusal({port: 8080}) is None and refusal({port: 8000}, Placement.COLOCATED) is None
    assert refusal({"mcqa.resources_servers.mcqa.database.port": 8000}) is None


def test_two_servers_that_are_given_one_port_are_both_named():
    agent, server = "a.responses_api_agents.simple_agent.port", "mcqa.resources_servers.mcqa.port"
    refused = refusal({agent: 9000, server: 9000})
    assert f"{server} is 9000, the port of {agent}" in refused
    assert refusal({agent: 9000, server: 9001}) is None


ODD = [
    {"a b": 1},
    {"a=b": 1},
    {"it's": 1},
    {'a"b': 1},
    {"a": {"b/c:d": 1}},
    {"a": {"schlüssel": 1}},
    {"a@b": 1},
    {"a[0]": 1},
    {"7.a": 1},
    {"a.007": 1},
    {"a": [{"b c": 1}]},
    {"a": [[{"true": 1}]]},
    {"a": [{"b": {"$c": 1}}]},
]


@pytest.mark.parametrize("params", ODD)
def test_a_key_that_gyms_command_line_has_no_words_for_is_refused_by_name_where_that_is_used(params):
    (key,) = [key for key in keys_of(params) if key not in "abc"]
    refused = refusal(params, Placement.COLOCATED)
    assert "spec.target.gym.hydraParams" in refused and repr(key) in refused
    assert refusal(params) is None, "a sandboxed Gym is told in JSON"


def keys_of(value):
    if isinstance(value, dict):
        return [key for entry, inner in value.items() for key in (entry, *keys_of(inner))]
    return [key for inner in value for key in keys_of(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("text", ["C:\\dir\\", "it\\'s"])
def test_a_text_that_gyms_command_line_cannot_be_told_is_refused_by_its_place_and_not_repeated(text):
    params = {"a": {"b": ["fine", text]}}
    refused = refusal(params, Placement.COLOCATED)
    assert "hydraParams.a.b has a backslash" in refused and text not in refused
    assert refusal(params) is None


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("params", [{"": 1}, {"a..b": 1}, {"a": {"b.": 1}}])
def test_a_key_that_names_nothing_is_refused_in_both_placements(placement, params):
    assert "names nothing" in refusal(params, placement)


@pytest.mark.parametrize("placement", Placement)
def test_keys_that_hydra_reads_as_they_stand_pass_in_both_placements(placement):
    body = {"logit_bias": {"50256": -100}, "$defs": {"a-b": {"_c": 1}}, "true": [{"x.y-z": {"t": 'it\'s "q", [x]'}}]}
    assert refusal({"m.n": {"extra_body": body}}, placement) is None


ROUTE = {"policy_model": {"responses_api_models": {"openai_model": {"openai_base_url": "http://elsewhere/v1"}}}}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"judge_base_url": "http://judge/v1"}, ("hydraParams.judge_base_url", "spec.models", "${judge_base_url}")),
        (ROUTE, ("policy_model.responses_api_models.openai_model.openai_base_url", "spec.models")),
        (
            {"m.responses_api_models.vllm_model.base_url": ["http://a/v1"]},
            ("m.responses_api_models.vllm_model.base_url",),
        ),
        ({"m": {"responses_api_models": {"vllm_model": {"model": "org/other"}}}}, ("vllm_model.model", "spec.models")),
        ({"judge_model_name": "org/other"}, ("hydraParams.judge_model_name", "spec.models")),
    ],
)
def test_a_route_to_a_model_that_is_not_declared_is_refused(params, words):
    refused = refusal(params, modelType="openai_model")
    assert all(word in refused for word in words), refused


VLLM = {"policy_model": {"responses_api_models": {"vllm_model": {"extra_body": {"top_k": 1}}}}}


@pytest.mark.parametrize(
    "params",
    [
        VLLM,
        {"policy_model.responses_api_models.vllm_model.extra_body.top_k": 1},
        {"policy_model": {"responses_api_models.vllm_model": {"extra_body": {"top_k": 1}}}},
    ],
)
def test_settings_of_another_model_server_than_the_jobs_are_refused_with_the_model_type_to_set(params):
    words = "hydraParams sets policy_model.responses_api_models.vllm_model, but modelType is"
    default, stated = refusal(params), refusal(params, modelType="openai_model")
    assert f"{words} inference_provider (the default)" in default
    assert f"{words} openai_model: " in stated
    assert all("set spec.target.gym.modelType: vllm_model" in refused for refused in (default, stated))
    assert refusal(params, modelType="vllm_model") is None


@pytest.mark.parametrize(
    "params",
    [
        {"api_key": "k"},
        {"judge": {"responses_api_models": {"vllm_model": {"api_key": "literal"}}}},
        {"search": {"resources_servers": {"search": {"tavily_api_key": "literal"}}}},
        {"a.b.auth_token": "literal"},
        {"a": [{"password": "literal"}]},
        {"a": {"innocent": "nvapi-literal0123456789"}},
    ],
)
def test_a_credential_in_hydra_params_is_refused_with_its_place_and_never_repeated(params):
    refused = refusal(params)
    assert "spec.target.gym.hydraParams." in refused and "envSecrets" in refused
    assert "literal" not in refused


@pytest.mark.parametrize(
    "params",
    [
        {"judge": {"responses_api_models": {"vllm_model": {"api_key": "${judge_api_key}", "model": "org/Name-3.2"}}}},
        {"judge": {"responses_api_models": {"vllm_model": {"base_url": "http://127.0.0.1:9/v1"}}}},
        {"search": {"resources_servers": {"search": {"base_url": "http://tools/", "key": "${oc.env:SEARCH_KEY}"}}}},
        {"policy_model": {"responses_api_models": {"inference_provider": {"extra_body": {"max_tokens": 16}}}}},
        {"model": {"temperature": 0.7}},
    ],
)
def test_references_and_settings_that_are_no_routes_pass(params):
    assert refusal(params) is None
