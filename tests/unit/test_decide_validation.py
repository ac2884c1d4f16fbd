"""What the images hold is checked before any pod is made."""

import pytest
from pydantic.alias_generators import to_camel

from nhx_gym_operator.api import bundled
from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.api.limits import Limits
from nhx_gym_operator.api.wire.plans import NODE_HOST, Bound
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.observe import parse_job
from nhx_gym_operator.workloads import options, plans
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

SERVERS = {
    "resources_servers/mcqa": [],
    "resources_servers/ifbench": ["spacy", "emoji"],
    "responses_api_agents/simple_agent": [],
    "responses_api_agents/gymnasium_agent": [],
}


@pytest.fixture(autouse=True)
def servers(monkeypatch):
    monkeypatch.setattr(bundled, "_components", lambda: SERVERS)
    monkeypatch.setattr(bundled, "_instances", lambda: {"mcqa_simple_agent": "simple_agent"})


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
    first, _, others = refused["message"].partition("\n")
    assert "'mcqaa'" in first and first.endswith("did you mean 'mcqa'?"), "short tables show the first line"
    assert others == "those that run are mcqa"


def test_a_misspelt_agent_that_gym_would_ignore_is_refused():
    """With agentRefName, the environment's instance says which agent it is of."""
    refused = condition_of(decided("mcqa", agent="simple_agnt", agentRefName="mcqa_simple_agent"), "Failed")
    assert refused["reason"] == "UnknownBundledAgent"
    for words in (
        "spec.target.gym.agent 'simple_agnt'",
        "did you mean 'simple_agent'?",
        "spec.target.gym.agentRefName",
    ):
        assert words in refused["message"]


def test_an_agent_that_the_instance_beside_it_is_not_of_is_refused_with_the_one_that_it_is_of():
    """A sandboxed Gym would go by the instance and a colocated one by the agent."""
    refused = condition_of(decided("mcqa", agent="gymnasium_agent", agentRefName="mcqa_simple_agent"), "Failed")
    assert refused["reason"] == "OtherBundledAgent"
    assert refused["message"] == (
        "spec.target.gym.agent is 'gymnasium_agent', but spec.target.gym.agentRefName 'mcqa_simple_agent' is an "
        "instance of 'simple_agent'; correct one of them"
    )


@pytest.mark.parametrize(
    ("changes", "gym"),
    [
        ({}, {"agent": "simple_agent"}),
        ({}, {"agentRefName": None}),
        ({}, {"agentRefName": "gymnasium_agent"}),
        ({}, {"agentRefName": "declared_in_hydra_params"}),
        ({}, {"environment": {"fileSet": {"name": "mine"}}}),
        ({"images": {"checkBundled": False}}, {}),
    ],
)
def test_an_agent_is_compared_with_an_instance_of_the_images_alone(changes, gym):
    asked = {"agent": "gymnasium_agent", "agentRefName": "mcqa_simple_agent"} | gym
    assert not holds(decided("mcqa", changes, **asked), "Failed")


@pytest.mark.parametrize(
    ("changes", "gym"),
    [
        ({}, {"agentRefName": None}),
        ({}, {"agentRefName": "simple_agnt"}),
        ({}, {"environment": {"fileSet": {"name": "mine"}}}),
        ({"images": {"checkBundled": False}}, {}),
    ],
)
def test_an_agent_of_ones_own_or_one_that_gym_itself_looks_for_is_not_in_the_images_list(changes, gym):
    assert not holds(decided("mcqa", changes, agent="simple_agnt", **gym), "Failed")


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


def test_hydra_params_fail_the_job_before_anything_else_has_to_follow_them():
    nested = 1
    for _ in range(5000):
        nested = {"a": nested}
    refused = condition_of(decided("mcqa", hydraParams=nested), "Failed")
    assert refused["reason"] == "InvalidSpec" and "64 levels" in refused["message"]


def test_hydra_params_are_judged_for_the_placement_that_the_job_gets():
    params = {"a b": 1}
    assert not holds(decided("mcqa", hydraParams=params), "Failed")
    assert holds(decided("mcqa", {"sandbox": {"mode": "Disabled"}}, hydraParams=params), "Failed")


def test_a_spec_whose_parts_fit_but_not_together_is_refused():
    variables = {f"V{n}": "x" * 1024 for n in range(64)}
    refused = condition_of(decided("mcqa", envVars=variables, hydraParams={"a": "x" * 60_000}), "Failed")
    assert refused["reason"] == "InvalidSpec" and "envVars" in refused["message"]
    assert condition_of(decided("mcqa", envVars=variables), "Failed") is None


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "All_Proxy", "NO_PROXY", "wss_proxy"])
def test_a_proxy_is_refused_by_its_variable_whatever_an_older_definition_let_in(name):
    """In a colocated pod it would look up, and reach, what the evaluator refuses to."""
    secret = {name: {"secretKeyRef": {"name": "s", "key": "k"}}}
    for field, gym in (("envVars", {"envVars": {name: "http://here:1"}}), ("envSecrets", {"envSecrets": secret})):
        refused = condition_of(decided("mcqa", **gym), "Failed")
        assert refused["reason"] == "InvalidSpec"
        for words in (f"spec.target.gym.{field}.{name}", "administrator", "spec.models"):
            assert words in refused["message"]
        assert "here" not in refused["message"]


def test_a_variable_that_only_sounds_like_a_proxy_is_taken():
    assert not holds(decided("mcqa", envVars={"REVERSE_PROXY": "x", "HTTP_PROXY_HEADER": "y"}), "Failed")


@pytest.mark.parametrize("what", ["rollouts", "tokens", "calls", "modelSeconds", "concurrentCalls"])
def test_a_limit_above_the_operators_is_refused_with_both_numbers_and_the_setting(what):
    setting = f"max{what[0].upper()}{what[1:]}"
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


def test_every_limit_of_a_job_reaches_its_evaluator_and_has_one_of_the_operators():
    names = list(Limits.model_fields)
    plan = plans.evaluator_plan(workload(job(limits={to_camel(name): 7 for name in names}), options=settings()))
    assert [getattr(plan, f"max_{name}") for name in names] == [
        Bound(value=7, setting=f"spec.limits.{to_camel(name)}") for name in names
    ]
    assert {f"max_{name}" for name in names} == set(options.Limits.model_fields)


ARTIFACTS, WIKI = "artifacts.example.internal:8443", "*.wiki.example.org"


def asking_for(*hosts, allowed=(), **changes):
    installed = installation(sandbox={"egress": {"allow": list(allowed)}, **changes})
    return decide(new(job(egress={"allow": list(hosts)}), installation=installed), NOW)


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
def test_a_host_that_the_administrator_does_not_allow_is_refused_with_the_setting(mode):
    refused = condition_of(asking_for(ARTIFACTS, "example.com", allowed=[ARTIFACTS, WIKI], mode=mode), "Failed")
    assert refused["reason"] == "EgressNotAllowed"
    for words in ("spec.egress.allow asks for example.com,", f"sandbox.egress.allow allows {ARTIFACTS}, {WIKI};"):
        assert words in refused["message"]
    assert "allows nothing" in condition_of(asking_for("example.com"), "Failed")["message"]


def test_a_host_within_the_administrators_list_is_given_and_nothing_unasked():
    assert not holds(asking_for("en.wiki.example.org:443", allowed=[ARTIFACTS, WIKI]), "Failed")
    options = settings(sandbox={"egress": {"allow": [ARTIFACTS, WIKI]}})
    asking = workload(job(egress={"allow": ["en.wiki.example.org:443"]}), options=options)
    assert plans.evaluator_plan(asking).egress.allow == ["en.wiki.example.org:443"]
    assert plans.host_plan(asking, 0).egress
    silent = workload(options=options)
    assert plans.evaluator_plan(silent).egress is None and not plans.host_plan(silent, 0).egress


def test_what_the_gate_proves_shut_is_named_to_the_proxy():
    (shut,) = [plans.evaluator_plan(workload(job(egress={"allow": [ARTIFACTS]}))).egress.shut]
    proven = {target.host for target in plans.host_plan(workload(), 0).gate_refused} - {NODE_HOST}
    assert set(shut) == proven and {"10.96.0.1", "192.0.2.1", "169.254.169.254"} < proven


def test_beside_the_evaluator_there_is_no_proxy():
    colocated = workload(job(egress={"allow": [ARTIFACTS]}), placement=Placement.COLOCATED)
    assert plans.evaluator_plan(colocated).egress is None
