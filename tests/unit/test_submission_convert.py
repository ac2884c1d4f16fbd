"""Spec files of the agent-evaluate shape: what becomes of each field, what is refused, and that nothing is lost."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nhx_evals_sdk.agent_eval.runtimes.gym import GymRuntimeConfig
from nhx_evals_sdk.agent_eval.tasks import AgentEvalRunConfig
from nhx_evals_sdk.values.common import SecretRef

from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.api.models import ModelSpec
from nhx_gym_operator.api.resource import KeyRef
from nhx_gym_operator.api.tasks import Dataset, Tasks
from nhx_gym_operator.cli.submit import load
from nhx_gym_operator.submission.convert import job_of, manifest_of, new_name
from nhx_gym_operator.submission.errors import SubmissionError
from nhx_gym_operator.submission.spec_file import is_spec_file, parse_spec
from nhx_gym_operator.submission.target import REFERENCE, AgentEvalInputSpec, GymPlacement, GymRunnerTarget
from support.way_back import spec_of
from unit.test_api_job import pages

KEY = "sk-abcdefghijklmnop0123"
ROUTE = {
    "policy_base_url": "http://models.example.org/v1",
    "policy_api_key": "not-used",
    "policy_model_name": "org/Name-3.2",
}
SPEC: dict[str, Any] = {
    "tasks": "default/my-gym-taskset",
    "target": {
        "kind": "gym",
        "source": {
            "component": "simple_agent",
            "config": "responses_api_agents/simple_agent/configs/simple_agent.yaml",
        },
        "resources_server": "mcqa",
        "hydra_params": ROUTE,
    },
}


def spec(
    hydra: dict[str, Any] | None = None, *, top: dict[str, Any] | None = None, **target: Any
) -> AgentEvalInputSpec:
    value = deepcopy(SPEC)
    value["target"] |= target
    value["target"]["hydra_params"] = {**ROUTE, **(hydra or {})}
    return parse_spec({**value, **(top or {})}, "spec.json")


def job(parsed: AgentEvalInputSpec, **more: Any) -> dict[str, Any]:
    return job_of(parsed, name="mcqa", **more).to_dict()


def page_spec() -> Any:
    """The spec file of gym-custom-environment.mdx, as it stands there."""
    text = (pages() / "evals/agent-eval/gym-custom-environment.mdx").read_text(encoding="utf-8")
    block = next(part for part in text.split("```yaml\n") if part.startswith("tasks: "))
    return yaml.safe_load(block.split("```")[0])


def test_the_spec_file_of_the_documentation_becomes_a_job():
    made = job(parse_spec(page_spec(), "page"))
    gym = made["spec"]["target"]["gym"]
    assert made["metadata"]["namespace"] == "default"
    assert made["spec"]["tasks"] == {
        "taskset": {"configMap": {"name": "my-gym-taskset", "key": "taskset.jsonl"}},
        "taskIds": [],
    }
    (policy,) = made["spec"]["models"]
    assert policy["name"] == "policy" and policy["model"] == "my-model" and "apiKey" not in policy
    assert policy["baseUrl"].startswith("http://nemo-helix-api.default.svc.cluster.local:8080/apis/")
    assert gym["environment"] == {"fileSet": {"name": "my-gym-environment"}}
    assert (gym["agent"], gym["resourcesServer"]) == ("simple_agent", "custom_greeting")
    assert gym["agentConfig"] == "responses_api_agents/simple_agent/configs/simple_agent.yaml"
    assert gym["hydraParams"] == {}
    assert (made["spec"]["parallelism"], made["spec"]["failFast"]) == (1, True)
    assert made["spec"]["labels"] == {"benchmark": "custom-greeting"}


def test_a_manifest_says_only_what_is_no_default():
    manifest = manifest_of(job_of(spec(), name="mcqa"))
    assert manifest["metadata"] == {"name": "mcqa", "namespace": "default"}
    assert sorted(manifest["spec"]) == ["models", "results", "target", "tasks"]
    assert sorted(manifest["spec"]["target"]["gym"]) == ["agent", "agentConfig", "resourcesServer"]
    assert manifest["spec"]["tasks"] == {"taskset": {"configMap": {"name": "my-gym-taskset", "key": "taskset.jsonl"}}}


def test_an_agent_may_be_named_flat_or_as_source():
    flat = {"agent": "a", "agent_config": "c.yaml", "agent_ref_name": "i", "resources_server": "mcqa"}
    nested = {"source": {"component": "a", "config": "c.yaml", "instance": "i"}, "resources_server": "mcqa"}
    assert GymRunnerTarget.model_validate(flat) == GymRunnerTarget.model_validate(nested)


def test_a_target_has_the_fields_and_defaults_of_the_installed_gym_config_but_its_agent_and_placement():
    theirs, ours = dict(GymRuntimeConfig.model_fields), dict(GymRunnerTarget.model_fields)
    assert set(ours) - {"kind", "source", "environment"} == set(theirs) - {"agent", "agent_config"}
    for name in set(ours) & set(theirs):
        assert ours[name].is_required() == theirs[name].is_required(), name
        default = ours[name].get_default(call_default_factory=True)
        assert default == theirs[name].get_default(call_default_factory=True), name


def test_what_a_file_leaves_out_has_the_run_configs_defaults():
    run = AgentEvalRunConfig()
    made = job(spec())["spec"]
    assert (made["parallelism"], made["failFast"], made["labels"]) == (run.parallelism, run.fail_fast, run.labels)


def test_references_have_the_pattern_of_the_sdks_secret_refs():
    assert SecretRef.model_json_schema()["pattern"] == REFERENCE


def test_the_documents_name_what_this_package_defines():
    runner = (pages() / "evals/agent-eval/gym-runner.mdx").read_text(encoding="utf-8")
    assert all(name in runner for name in ("GymRunnerTarget", "GymPlacement", "UnsubmittableRunnerError"))
    assert all(f"`{field}`" in runner for field in GymPlacement.model_fields)
    assert "AgentEvalInputSpec" in (pages() / "evals/agent-eval/fabric-runner.mdx").read_text(encoding="utf-8")


# ---- models


def test_the_policys_route_becomes_a_model_and_leaves_the_other_settings_where_they_are():
    made = job(spec({"policy_model": {"responses_api_models": {"vllm_model": {"extra_body": {"top_k": 1}}}}}))
    assert made["spec"]["models"][0]["model"] == "org/Name-3.2"
    assert list(made["spec"]["target"]["gym"]["hydraParams"]) == ["policy_model"]


def test_a_judge_beside_the_policy_becomes_a_model_of_its_name():
    judge = {"safety_judge_base_url": "${policy_base_url}", "safety_judge_model_name": "org/judge"}
    models = job(spec(judge))["spec"]["models"]
    assert [(m["name"], m["baseUrl"], m["model"]) for m in models] == [
        ("policy", "http://models.example.org/v1", "org/Name-3.2"),
        ("safety-judge", "http://models.example.org/v1", "org/judge"),
    ]


def test_an_address_without_a_model_is_a_setting_like_any_other():
    made = job(spec({"search_base_url": "http://search.example.org"}))
    assert [m["name"] for m in made["spec"]["models"]] == ["policy"]
    assert made["spec"]["target"]["gym"]["hydraParams"] == {"search_base_url": "http://search.example.org"}


def test_a_key_named_by_a_variable_becomes_the_models_secret_and_does_not_enter_the_sandbox():
    made = job(spec({"policy_api_key": "${oc.env:MY_KEY}"}, env_secrets={"MY_KEY": "default/my-model-api-key"}))
    assert made["spec"]["models"][0]["apiKey"] == {"secretKeyRef": {"name": "my-model-api-key", "key": "value"}}
    assert made["spec"]["target"]["gym"]["envSecrets"] == {}


def test_a_stated_model_wins_over_the_files():
    stated = ModelSpec(name="policy", base_url="http://here/v1", model="m")
    made = job(spec(), models=[stated])
    assert made["spec"]["models"] == [stated.to_dict()]
    assert made["spec"]["target"]["gym"]["hydraParams"] == {}


@pytest.mark.parametrize(
    ("hydra", "secrets", "named"),
    [
        ({"policy_api_key": KEY}, {}, ["hydra_params.policy_api_key", "env_secrets", "${oc.env:POLICY_API_KEY}"]),
        ({"policy_api_key": {"a": 1}}, {}, ["hydra_params.policy_api_key"]),
        ({"policy_api_key": "${oc.env:NOWHERE}"}, {}, ["policy_api_key", "NOWHERE", "env_secrets"]),
        ({"policy_api_key": "${other}"}, {}, ["policy_api_key"]),
        ({"policy_base_url": ""}, {}, ["hydra_params.policy_base_url"]),
        ({"policy_model_name": None}, {}, ["hydra_params.policy_model_name"]),
        ({"policy_model_name": "${a.b}"}, {}, ["hydra_params.policy_model_name"]),
        ({"policy_model_name": "x" * 300}, {}, ["hydra_params.policy_model_name"]),
        ({"policy_base_url": f"http://user:{KEY}@host/v1"}, {}, ["hydra_params.policy_base_url"]),
        ({"judge_base_url": "http://j/v1", "judge_model_name": "j", "judge_api_key": KEY}, {}, ["judge_api_key"]),
        ({"a.b.openai_api_key": KEY}, {}, ["hydra_params.a.b.openai_api_key", "env_secrets"]),
        ({"a": [{"openai_api_key": KEY}]}, {}, ["hydra_params.a[0].openai_api_key", "env_secrets"]),
        (
            {"policy_api_key": "${oc.env:K}", "x": {"y": "${oc.env:K}"}},
            {"K": "k"},
            ["hydra_params", "K", "${policy_api_key}"],
        ),
        ({"policy_api_key": "${oc.env:K}"}, {"K": "same", "OTHER": "same"}, ["env_secrets.OTHER", "`policy`"]),
    ],
)
def test_a_route_that_cannot_work_is_refused_by_field_and_no_key_is_repeated(hydra, secrets, named):
    with pytest.raises(SubmissionError) as error:
        job(spec(hydra, env_secrets=secrets))
    assert all(part in str(error.value) for part in named), error.value
    assert KEY not in str(error.value)


def test_a_spec_without_a_policy_says_which_settings_name_it():
    value = deepcopy(SPEC)
    value["target"]["hydra_params"] = {}
    with pytest.raises(SubmissionError, match=r"hydra_params\.policy_base_url and policy_model_name"):
        job(parse_spec(value, "spec.json"))


# ---- secrets and variables


@pytest.mark.parametrize(
    ("reference", "secret"),
    [
        ("my-model-api-key", {"name": "my-model-api-key", "key": "value"}),
        ("default/my-model-api-key", {"name": "my-model-api-key", "key": "value"}),
        ("NVIDIA_API_KEY", {"name": "nvidia-api-key", "key": "value"}),
    ],
)
def test_a_reference_is_the_key_value_of_a_secret_of_its_name(reference, secret):
    made = job(spec(env_secrets={"TOOL_KEY": reference}))
    assert made["spec"]["target"]["gym"]["envSecrets"] == {"TOOL_KEY": {"secretKeyRef": secret}}


def test_a_submitter_may_say_which_key_of_which_secret_a_reference_is():
    made = job(
        spec(env_secrets={"TOOL_KEY": "default/tool"}), secrets={"default/tool": KeyRef(name="tools", key="a.b")}
    )
    assert made["spec"]["target"]["gym"]["envSecrets"] == {
        "TOOL_KEY": {"secretKeyRef": {"name": "tools", "key": "a.b"}}
    }


@pytest.mark.parametrize("variable", [{"JUDGE_API_KEY": "abc"}, {"HARMLESS": KEY}])
def test_a_credential_in_env_vars_is_refused_with_the_field_that_takes_it(variable):
    with pytest.raises(SubmissionError) as error:
        job(spec(env_vars=variable))
    (name,) = variable
    assert f"target.env_vars.{name}" in str(error.value) and "target.env_secrets" in str(error.value)
    assert KEY not in str(error.value)


def test_a_variable_stands_once():
    with pytest.raises(SubmissionError, match="TWICE in both env_vars and env_secrets"):
        spec(env_vars={"TWICE": "a"}, env_secrets={"TWICE": "b"})


# ---- namespaces


def test_the_references_namespace_is_the_jobs():
    assert job(spec())["metadata"]["namespace"] == "default"
    assert job(spec(top={"tasks": "suite"}))["metadata"].get("namespace", "") == ""
    assert job(spec(top={"tasks": "suite"}), namespace="team")["metadata"]["namespace"] == "team"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"env_secrets": {"A": "elsewhere/a"}}, "target.env_secrets.A"),
        ({"environment": "elsewhere/e"}, "target.environment"),
    ],
)
def test_a_reference_into_another_namespace_is_refused_by_field(changes, field):
    with pytest.raises(SubmissionError, match=rf"{field} is in `elsewhere` and the job in `default`"):
        job(spec(**changes))


def test_a_namespace_that_is_asked_for_must_be_the_references():
    with pytest.raises(SubmissionError, match="tasks is in `default` and the job in `team`"):
        job(spec(), namespace="team")


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"target": {"kind": "harbor", "source": {"name": "oracle"}}}, ["target", "`kind`", "gym"]),
        (
            {"target": {"kind": "gym", "source": {"agent": "calculator"}, "resources_server": "x"}},
            ["source", "`agent`"],
        ),
        ({"target": SPEC["target"] | {"agent": "a"}}, ["`source` and `agent`"]),
        ({"target": SPEC["target"] | {"resolved_config": {}}}, ["`resolved_config`"]),
        ({"target": {"agent_config": "c", "resources_server": "x"}}, ["`agent` is missing"]),
        ({"target": SPEC["target"] | {"gpu": 1}}, ["target.gpu"]),
        ({"trials": []}, ["trials"]),
        ({"tasks": "a/b/c"}, ["tasks"]),
        ({"tasks": "My_Taskset"}, ["tasks", "`My_Taskset`", "lower-case"]),
        ({"labels": {"seed": 3}}, ["labels.seed"]),
        ({"labels": {"text": "x" * 300}}, ["labels.text"]),
        ({"max_concurrent_tasks": 0}, ["max_concurrent_tasks"]),
        ({"target": SPEC["target"] | {"num_repeats": 0}}, ["target.num_repeats"]),
        ({"target": SPEC["target"] | {"startup_timeout_s": 0}}, ["target.startup_timeout_s"]),
        ({"target": SPEC["target"] | {"source": {"component": "no spaces"}}}, ["target.source"]),
        ({"target": SPEC["target"] | {"source": {"component": "a"}}}, ["target.source.config"]),
    ],
)
def test_a_field_that_cannot_be_taken_is_named(change, named):
    with pytest.raises(SubmissionError) as error:
        job(parse_spec({**deepcopy(SPEC), **change}, "spec.json"))
    assert all(part in str(error.value) for part in named), error.value


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("target: {hydra_params: {since: 2026-01-01}}", ["target.hydra_params.since", "date", "quotes"]),
        ("target: {hydra_params: {x: [1, .nan]}}", ["target.hydra_params.x[1]", "nan"]),
        ("target: {hydra_params: {x: {1: a}}}", ["target.hydra_params.x", "key 1"]),
        ("target: {hydra_params: {x: 18446744073709551616}}", ["target.hydra_params.x", "64 bits"]),
        ("- a list", ["tasks"]),
    ],
)
def test_a_file_whose_values_are_not_jsons_is_refused_by_field(text, named):
    with pytest.raises(SubmissionError) as error:
        parse_spec(yaml.safe_load(text), "a/spec.yaml")
    assert all(part in str(error.value) for part in ["a/spec.yaml", *named]), error.value


def test_json_and_yaml_and_a_byte_order_mark_are_read_alike(tmp_path: Path):
    for name, text in (("s.json", json.dumps(SPEC)), ("s.yaml", yaml.safe_dump(SPEC)), ("b.json", json.dumps(SPEC))):
        (tmp_path / name).write_text(text, encoding="utf-8-sig" if name.startswith("b") else "utf-8")
    made = [load(str(tmp_path / name), stdin=None) for name in ("s.json", "s.yaml", "b.json")]
    assert made[0] == made[1] == made[2] == [SPEC]


def test_a_manifest_is_no_spec_file():
    assert is_spec_file(SPEC) and not is_spec_file(job(spec()))


def test_tasks_may_be_stated_beside_the_file():
    bundled = Tasks(dataset=Dataset(bundled="resources_servers/mcqa/data/example.jsonl"))
    made = job(spec(top={"tasks": "elsewhere/x"}), tasks=bundled)
    assert made["spec"]["tasks"]["dataset"] == {"bundled": "resources_servers/mcqa/data/example.jsonl"}


def test_a_made_up_name_is_one_that_kubernetes_takes():
    target = spec(resources_server="My.Very_long-server" * 9).target
    names = {new_name(target.resources_server) for _ in range(20)}
    assert len(names) > 15 and all(len(n) <= 40 and n[0].isalnum() and n == n.lower() for n in names)


# ---- both ways

_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
_WORD = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,10}", fullmatch=True)
_NAME = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
_VARIABLE_NAME = st.from_regex(r"[A-Z][A-Z_]{0,6}_V", fullmatch=True)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_SECONDS = st.floats(min_value=0.5, max_value=3600)


@st.composite
def spec_values(draw) -> dict[str, Any]:
    """Spec files as people may write them: bare references or qualified ones, flat agents or a `source`."""
    workspace = draw(st.sampled_from(["", "team/"]))
    names = st.builds(lambda name: workspace + name, _NAME)
    variables = draw(st.lists(_VARIABLE_NAME, unique=True, max_size=4))
    secret_names = draw(st.lists(_NAME, unique=True, min_size=len(variables), max_size=len(variables)))
    references = {v: workspace + s for v, s in zip(variables, secret_names, strict=True)}
    hydra = {f"x{key}": value for key, value in draw(st.dictionaries(_TEXT, _VALUES, max_size=3)).items()}
    free = list(variables)
    for prefix in ["policy", *draw(st.lists(st.sampled_from(["judge", "safety_judge", "b2"]), unique=True))]:
        key = draw(st.sampled_from(["not-used", None, "variable"]))
        if key == "variable":
            key = f"${{oc.env:{free.pop()}}}" if free else "not-used"
        hydra |= {
            f"{prefix}_base_url": draw(st.sampled_from(["http://m/v1", "https://m.example.org:8443"])),
            f"{prefix}_model_name": draw(_WORD),
            f"{prefix}_api_key": key,
        }
    agent = {"component": draw(_WORD), "config": draw(_WORD), "instance": draw(st.none() | _WORD)}
    target = {
        "kind": "gym",
        "source": {name: value for name, value in agent.items() if value is not None},
        "environment": draw(st.none() | names),
        "resources_server": draw(_WORD),
        "model_type": draw(_WORD),
        "bind_resources_server": draw(st.booleans()),
        "hydra_params": hydra,
        "env_vars": draw(st.dictionaries(st.sampled_from(["LANGUAGE", "ROUNDS"]), _TEXT)),
        "env_secrets": references,
        "num_repeats": draw(st.integers(1, 100)),
        "concurrency": draw(st.integers(1, 1024)),
        "startup_timeout_s": draw(_SECONDS),
        "collection_timeout_s": draw(st.none() | _SECONDS),
        "shutdown_grace_s": draw(_SECONDS),
        "reward_key": draw(_WORD),
    }
    return {
        "tasks": draw(names),
        "target": target,
        "max_concurrent_tasks": draw(st.integers(1, 256)),
        "fail_fast": draw(st.booleans()),
        "labels": draw(st.dictionaries(_TEXT, _TEXT, max_size=3)),
    }


def without_secrets(given: AgentEvalInputSpec) -> AgentEvalInputSpec:
    params = {name: value for name, value in given.target.hydra_params.items() if not name.endswith("_api_key")}
    target = given.target.model_copy(update={"hydra_params": params, "env_secrets": {}})
    return given.model_copy(update={"target": target})


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec_values())
def test_a_spec_file_comes_back_from_its_manifest_with_everything_but_secrets(value: dict[str, Any]):
    given_spec = parse_spec(value, "spec.json")
    manifest = manifest_of(job_of(given_spec, name="round"))
    # As it travels: JSON text that the API server reads and writes again.
    made = AgentEvalJob.model_validate(json.loads(json.dumps(manifest, allow_nan=False)))
    back = spec_of(made)
    assert without_secrets(back) == without_secrets(given_spec)
    again = job_of(back, name="round")
    assert manifest_of(again) == manifest
    keys = {m.name: m.api_key for m in made.spec.models}
    assert {m.name: m.api_key for m in again.spec.models} == keys
