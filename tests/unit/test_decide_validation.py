"""What the images hold is checked before any pod is made."""

import pytest

from nhx_gym_operator.api import bundled
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.observe import parse_job
from nhx_gym_operator.workloads import plans
from support.controller_values import (
    NOW,
    UID,
    accepted_status,
    condition_of,
    holds,
    installation,
    job,
    new,
    settings,
    workload,
)

SERVERS = {"resources_servers/mcqa": [], "resources_servers/ifbench": ["spacy", "emoji"]}


@pytest.fixture(autouse=True)
def servers(monkeypatch):
    monkeypatch.setattr(bundled, "_servers", lambda: SERVERS)


def decided(server, changes=None, **gym):
    observed = new(job(gym={"resourcesServer": server, **gym}), installation=installation(**(changes or {})))
    return decide(observed, NOW)


def test_a_server_whose_packages_the_image_lacks_is_refused_naming_them():
    refused = condition_of(decided("ifbench"), "Failed")
    assert refused["reason"] == "BundledServerLacksDependencies"
    for word in ("ifbench", "spacy", "emoji", "images.gymHost", "images.checkBundled"):
        assert word in refused["message"]


def test_an_unknown_server_is_refused_with_those_that_run():
    refused = condition_of(decided("mcqaa"), "Failed")
    assert refused["reason"] == "UnknownBundledServer"
    assert "'mcqaa'" in refused["message"] and "mcqa" in refused["message"]


@pytest.mark.parametrize(
    ("changes", "gym"),
    [
        ({"images": {"checkBundled": False}}, {}),
        ({}, {"environment": {"fileSet": {"name": "mine"}}}),
    ],
)
def test_an_image_of_ones_own_or_an_environment_brings_its_servers(changes, gym):
    assert not holds(decided("ifbench", changes, **gym), "Failed")


def test_a_spec_that_cannot_be_read_is_refused_with_the_place():
    decision = decide(new(invalid="spec.models: Field required"), NOW)
    assert condition_of(decision, "Failed")["reason"] == "InvalidSpec"
    assert "spec.models" in condition_of(decision, "Failed")["message"]


def test_a_job_whose_spec_can_no_longer_be_read_keeps_the_status_it_has():
    raw = {"metadata": {"name": "mcqa", "namespace": "team", "uid": UID}, "spec": {}, "status": accepted_status()}
    owner, invalid = parse_job(raw)
    assert owner.status.to_dict() == accepted_status()
    refused = decide(new(owner, invalid=invalid), NOW)
    assert condition_of(refused, "Failed")["reason"] == "InvalidSpec"
    owner, invalid = parse_job({**raw, "status": refused.status})
    assert decide(new(owner, invalid=invalid), NOW).status == refused.status


@pytest.mark.parametrize(
    ("param", "field"),
    [("policy_base_url", "baseUrl"), ("policy_api_key", "apiKey"), ("policy_model_name", "model")],
)
def test_a_model_route_in_hydra_params_is_refused_with_the_field_it_belongs_in(param, field):
    refused = condition_of(decided("mcqa", hydraParams={param: "sk-very-secret"}), "Failed")
    assert refused["reason"] == "InvalidSpec"
    assert param in refused["message"] and f"spec.models[name=policy].{field}" in refused["message"]
    assert "sk-very-secret" not in refused["message"]


def test_hydra_params_that_no_pod_could_carry_are_refused_with_their_size():
    refused = condition_of(decided("mcqa", hydraParams={"a": "x" * 70_000}), "Failed")
    assert refused["reason"] == "InvalidSpec" and "65536" in refused["message"]


def nested(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def test_hydra_params_that_no_serialiser_could_follow_are_refused():
    refused = condition_of(decided("mcqa", hydraParams={"a": [nested(5000)]}), "Failed")
    assert refused["reason"] == "InvalidSpec" and "64 levels" in refused["message"]
    assert condition_of(decided("mcqa", hydraParams=nested(64)), "Failed") is None


def test_a_spec_whose_parts_fit_but_not_together_is_refused():
    variables = {f"V{n}": "x" * 1024 for n in range(64)}
    refused = condition_of(decided("mcqa", envVars=variables, hydraParams={"a": "x" * 60_000}), "Failed")
    assert refused["reason"] == "InvalidSpec" and "envVars" in refused["message"]
    assert condition_of(decided("mcqa", envVars=variables), "Failed") is None


@pytest.mark.parametrize("what", ["rollouts", "tokens"])
def test_a_limit_above_the_operators_is_refused_with_both_numbers_and_the_setting(what):
    setting = f"max{what.title()}"
    owner = job(limits={what: 1001})
    refused = condition_of(decide(new(owner, installation=installation(limits={setting: 1000})), NOW), "Failed")
    assert refused["reason"] == "LimitTooHigh"
    for words in (f"spec.limits.{what} is 1001", f"limits.{setting} allows 1000"):
        assert words in refused["message"]


@pytest.mark.parametrize(
    ("limits", "own", "expected"),
    [
        ({}, {}, None),
        ({"maxRollouts": 1000}, {}, (1000, "the operator's setting limits.maxRollouts")),
        ({"maxRollouts": 1000}, {"rollouts": 10}, (10, "spec.limits.rollouts")),
        ({"maxRollouts": 1000}, {"rollouts": 1000}, (1000, "spec.limits.rollouts")),
        ({}, {"rollouts": 10**9}, (10**9, "spec.limits.rollouts")),
        ({"maxTokens": 5}, {}, None),
    ],
)
def test_the_lower_bound_holds_and_the_evaluator_is_told_whose_it_is(limits, own, expected):
    owner = job(limits=own)
    assert not holds(decide(new(owner, installation=installation(limits=limits)), NOW), "Failed")
    bound = plans.evaluator_plan(workload(owner, options=settings(limits=limits))).max_rollouts
    assert (bound and (bound.value, bound.setting)) == expected


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
    refused = condition_of(decided("mcqa", {"sandbox": {"mode": "Disabled"}}, hydraParams=params), "Failed")
    assert refused["reason"] == "InvalidSpec"
    assert "spec.target.gym.hydraParams" in refused["message"] and repr(key) in refused["message"]
    assert not holds(decided("mcqa", hydraParams=params), "Failed"), "a sandboxed Gym is told in JSON"


def keys_of(value):
    if isinstance(value, dict):
        return [key for entry, inner in value.items() for key in (entry, *keys_of(inner))]
    return [key for inner in value for key in keys_of(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("text", ["C:\\dir\\", "it\\'s"])
def test_a_text_that_gyms_command_line_cannot_be_told_is_refused_by_its_place_and_not_repeated(text):
    params = {"a": {"b": ["fine", text]}}
    refused = condition_of(decided("mcqa", {"sandbox": {"mode": "Disabled"}}, hydraParams=params), "Failed")
    assert "hydraParams.a.b has a backslash" in refused["message"] and text not in refused["message"]
    assert not holds(decided("mcqa", hydraParams=params), "Failed")


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
@pytest.mark.parametrize("params", [{"": 1}, {"a..b": 1}, {"a": {"b.": 1}}])
def test_a_key_that_names_nothing_is_refused_in_both_placements(mode, params):
    refused = condition_of(decided("mcqa", {"sandbox": {"mode": mode}}, hydraParams=params), "Failed")
    assert refused["reason"] == "InvalidSpec" and "names nothing" in refused["message"]


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
def test_keys_that_hydra_reads_as_they_stand_pass_in_both_placements(mode):
    body = {"logit_bias": {"50256": -100}, "$defs": {"a-b": {"_c": 1}}, "true": [{"x.y-z": {"t": 'it\'s "q", [x]'}}]}
    assert not holds(decided("mcqa", {"sandbox": {"mode": mode}}, hydraParams={"m.n": {"extra_body": body}}), "Failed")


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
    refused = condition_of(decided("mcqa", hydraParams=params), "Failed")
    assert refused["reason"] == "InvalidSpec"
    assert all(word in refused["message"] for word in words), refused["message"]


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
    refused = condition_of(decided("mcqa", hydraParams=params), "Failed")
    assert refused["reason"] == "InvalidSpec"
    assert "spec.target.gym.hydraParams." in refused["message"] and "envSecrets" in refused["message"]
    assert "literal" not in refused["message"]


@pytest.mark.parametrize(
    "params",
    [
        {"judge": {"responses_api_models": {"vllm_model": {"api_key": "${judge_api_key}", "model": "org/Name-3.2"}}}},
        {"judge": {"responses_api_models": {"vllm_model": {"base_url": "http://127.0.0.1:9/v1"}}}},
        {"search": {"resources_servers": {"search": {"base_url": "http://tools/", "key": "${oc.env:SEARCH_KEY}"}}}},
        {"policy_model": {"responses_api_models": {"vllm_model": {"extra_body": {"max_tokens": 16}}}}},
        {"model": {"temperature": 0.7}},
    ],
)
def test_references_and_settings_that_are_no_routes_pass(params):
    assert condition_of(decided("mcqa", hydraParams=params), "Failed") is None
