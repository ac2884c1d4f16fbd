"""What the page on NeMo Gym environments says of tasks, options, collection and files."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import annotated_types
import pytest
from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator
from nhx_evals_sdk.agent_eval.runtimes.gym import GymRewardMetric, GymRuntimeConfig, discover_gym_tasks
from nhx_evals_sdk.agent_eval.runtimes.gym.config import _flatten_overrides, selection_args
from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import materialize_dataset
from nhx_evals_sdk.agent_eval.tasks import AgentEvalRunConfig
from nhx_evals_sdk.resolvers import LocalSecretResolver
from nhx_evals_sdk.values import SecretRef
from pydantic import ValidationError

from contract import runs
from contract.pages import code, table
from contract.runs import BROKEN, REPEATS, ROWS, Finished
from nhx_gym_operator.api.gym_config import nested
from nhx_gym_operator.api.job import JobSpec
from nhx_gym_operator.api.target import GymSpec
from nhx_gym_operator.evaluator.dataset import Dataset, Subset, load_dataset
from nhx_gym_operator.evaluator.gym_process import GymProcess, runtime_config
from nhx_gym_operator.in_pods.masking import Mask
from unit.evaluator_fakes import route, row, target, world, write_rows

ROOT = Path(__file__).resolve().parents[2]
SIMPLE_AGENT = "responses_api_agents/simple_agent/configs/simple_agent.yaml"


def locked(image: str) -> dict[str, str]:
    """The packages of an image's lock and their versions."""
    text = (ROOT / "images" / image / "requirements.lock").read_text()
    return dict(re.findall(r"^([a-z0-9][\w.-]*)(?:\[[^]]*\])?==(\S+)", text, flags=re.MULTILINE))


def load(tmp_path: Path, rows: list[dict[str, Any]]) -> Dataset:
    return load_dataset(write_rows(tmp_path / "rows.jsonl", rows), "rows", Subset(), copy=tmp_path / "copy/rows.jsonl")


# Where a job runs


def test_placement_is_no_field_of_a_job() -> None:
    fields = set(JobSpec.model_fields) | set(GymSpec.model_fields)
    assert not {name for name in fields if re.search("placement|sandbox|isolation|runtime_class|image", name)}


def test_the_images_hold_the_documented_gym_and_its_tokenizer() -> None:
    gym = locked("gym")
    assert gym["nemo-gym"] == "0.5.0" and "tiktoken" in gym


def test_gym_and_the_sdk_live_apart() -> None:
    gym, sdk = locked("gym"), locked("nhx")
    assert "ray" in gym and "nemo-helix-plugin" not in gym
    assert "nemo-helix-plugin" in sdk and not {"ray", "nemo-gym"} & sdk.keys()


def test_a_live_runner_cannot_carry_a_placement() -> None:
    for name in ("environment", "agent_ref_name"):
        with pytest.raises(ValidationError, match="Extra inputs"):
            GymRuntimeConfig(agent="a", agent_config="c", resources_server="r", **{name: "x"})
        assert name in GymSpec.model_fields


# Tasks


def test_tasks_are_those_of_discover_gym_tasks(tmp_path: Path) -> None:
    ours = load(tmp_path, ROWS).tasks
    theirs = discover_gym_tasks(write_rows(tmp_path / "rows.jsonl", ROWS))
    assert [(task.id, task.intent, task.inputs) for task in ours] == [(t.id, t.intent, t.inputs) for t in theirs]
    assert [task.metadata["gym_row_extras"] for task in ours] == [t.metadata["gym_row_extras"] for t in theirs]


def test_a_task_is_known_by_its_rows_content_alone(tmp_path: Path) -> None:
    same = [dict(reversed(row(0).items())), {**row(0), "_ng_task_index": 7, "_ng_rollout_index": 3}]
    ids = [load(tmp_path, [each]).tasks[0].id for each in (row(0), *same)]
    assert len(set(ids)) == 1 and re.fullmatch("[0-9a-f]{64}", ids[0])
    assert load(tmp_path, [{**row(0), "note": "changed"}]).tasks[0].id != ids[0]


def test_a_task_is_scored_by_gyms_reward_unless_it_says_otherwise(tmp_path: Path) -> None:
    for task in load(tmp_path, ROWS).tasks:
        (metric,) = task.metrics
        assert isinstance(metric, GymRewardMetric) and metric.output_name == "reward"


def test_a_row_is_a_task_and_an_attempt_a_trial(whole: Finished) -> None:
    tasks, trials = whole.lines("tasks.jsonl"), whole.lines("trials.jsonl")
    assert (len(tasks), len(trials)) == (len(ROWS), len(ROWS) * REPEATS)
    assert [trial["id"] for trial in trials] == [f"{t['id']}:{n}" for t in tasks for n in range(REPEATS)]


def test_each_attempt_is_sent_once_and_a_failed_one_is_not_sent_again(partly: Finished) -> None:
    assert sorted(partly.sent) == [(task, repeat) for task in range(len(ROWS)) for repeat in range(REPEATS)]


def test_the_dataset_handed_to_gym_is_the_one_that_the_sdk_writes(whole: Finished, tmp_path: Path) -> None:
    tasks = discover_gym_tasks(write_rows(tmp_path / "rows.jsonl", ROWS))
    materialize_dataset(tasks, tmp_path / "gym_input.jsonl")
    assert whole.lines("gym_run/gym_input.jsonl") == [
        json.loads(line) for line in (tmp_path / "gym_input.jsonl").read_text().splitlines()
    ]
    assert [each["_ng_task_index"] for each in whole.lines("gym_run/gym_input.jsonl")] == list(range(len(ROWS)))


def test_a_rollout_belongs_to_the_row_that_was_sent_whatever_its_answer_claims(tmp_path: Path) -> None:
    def claim_another_row(example: dict[str, Any], text: str) -> float:
        example["_ng_task_index"], example["_ng_rollout_index"] = 0, 0
        return float(text == example["expected_answer"])

    run = runs.sandboxed(tmp_path, claim_another_row)
    assert run.outcome.state == "Complete"
    for result in run.lines("gym_run/rollouts.jsonl"):
        assert result["expected_answer"] == str(result["_ng_task_index"])


# Options


def test_required_are_agent_and_resources_server_and_the_agents_config_unless_an_environment_has_it() -> None:
    assert {name for name, field in GymSpec.model_fields.items() if field.is_required()} == {
        "agent",
        "resources_server",
    }
    required = {name for name, field in GymRuntimeConfig.model_fields.items() if field.is_required()}
    assert required == {"agent", "agent_config", "resources_server"}
    rules = GymSpec.model_json_schema()["x-kubernetes-validations"]
    assert "has(self.agentConfig) || has(self.environment)" in [rule["rule"] for rule in rules]


def test_every_option_of_the_pages_table_is_a_field() -> None:
    options = {option.strip("`"): required for option, required, _ in table("gym-runner", "Field")}
    assert len(options) > 10
    ours = {re.sub("_seconds$", "_s", name): field for name, field in GymSpec.model_fields.items()}
    assert options.keys() <= ours.keys()
    assert {name for name, required in options.items() if required == "yes"} == {
        *(name for name, field in ours.items() if field.is_required()),
        "agent_config",
    }


def test_what_the_pages_import_from_the_sdk_is_there() -> None:
    blocks = [block for name in ("gym-runner", "gym-custom-environment") for block in code(name, "python")]
    imports = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module and node.module.startswith("nhx_evals_sdk")]
    assert len(ours) > 5
    for node in ours:
        module = importlib.import_module(str(node.module))
        assert not [name.name for name in node.names if not hasattr(module, name.name)], node.module


def test_defaults_are_one_attempt_four_at_once_and_240_seconds_no_limit_and_30() -> None:
    gym = GymSpec(agent="simple_agent", resources_server="mcqa")
    assert (gym.num_repeats, gym.concurrency, gym.reward_key) == (1, 4, "reward")
    timeouts = (gym.startup_timeout_seconds, gym.collection_timeout_seconds, gym.shutdown_grace_seconds)
    assert timeouts == (240, None, 30)


def test_a_secret_variable_is_a_reference_and_never_a_value() -> None:
    with pytest.raises(ValidationError):
        GymSpec.model_validate({"agent": "a", "resourcesServer": "r", "envSecrets": {"KEY": "sk-plain-text"}})


def test_a_local_secret_is_looked_for_under_its_workspace_first_and_then_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver, ref = LocalSecretResolver(), SecretRef("my-workspace/probe-key")
    monkeypatch.setenv("PROBE_KEY", "bare")
    assert resolver.env_var_for(ref) == "PROBE_KEY"
    monkeypatch.setenv("MY_WORKSPACE_PROBE_KEY", "prefixed")
    assert resolver.env_var_for(ref) == "MY_WORKSPACE_PROBE_KEY"


def test_gym_is_started_with_the_arguments_of_the_sdks_own_runner(beside: Finished) -> None:
    validate, start = beside.commands[:2]
    assert (validate[:2], start[:2]) == (["env", "validate"], ["env", "start"])
    assert validate[2:] == start[2:]
    config = GymRuntimeConfig(
        agent="simple_agent", agent_config=SIMPLE_AGENT, resources_server="mcqa", model_type="openai_model"
    )
    assert set(selection_args(config, beside.gym_run)) <= set(start)


@pytest.mark.parametrize("bound", [True, False])
def test_the_agent_is_bound_to_the_resources_server_unless_that_is_turned_off(bound: bool, tmp_path: Path) -> None:
    arguments = selection_args(runtime_config(target(bind_resources_server=bound), [route()]), tmp_path)
    binding = "+simple_agent.responses_api_agents.simple_agent.resources_server.name=mcqa"
    assert (binding in arguments) is bound


def test_the_models_route_stands_on_the_command_line_where_no_env_yaml_can_change_it(beside: Finished) -> None:
    for command in beside.commands[:2]:
        assert [
            a for a in command if re.fullmatch(r"\+\+policy_base_url='http://127\.0\.0\.1:\d+/models/policy/v1'", a)
        ]
        assert "++policy_model_name='org/Name-3.2'" in command
        assert "++policy_api_key='${oc.env:NHX_HOST_TOKEN}'" in command


HYDRA = {
    "plain": 1,
    "nested": {"temperature": 0.7, "deep": {"flag": True, "nothing": None}},
    "list": [1, "two, three", {"key": "it's"}],
    "text": "true",
    "path": "/a[1]/b,c",
    "dotted.key": {"leaf": 1.5},
    "empty": {},
    "reference": "${policy_base_url}",
}


def test_hydra_params_set_the_same_in_both_placements(tmp_path: Path) -> None:
    arguments = selection_args(runtime_config(target(hydra_params=HYDRA), [route()]), tmp_path)
    assert set(_flatten_overrides(HYDRA)) <= set(arguments)
    assert sorted(_flatten_overrides(nested(HYDRA))) == sorted(_flatten_overrides(HYDRA))


@pytest.mark.parametrize(("concurrency", "parallelism"), [(3, 1), (1, 64)])
def test_concurrency_is_of_collection_and_parallelism_of_scoring(
    concurrency: int, parallelism: int, tmp_path: Path
) -> None:
    scored: list[AgentEvalRunConfig] = []
    run = AgentEvaluator.run

    async def watched(self: AgentEvaluator, **arguments: Any) -> Any:
        scored.append(arguments["config"])
        return await run(self, **arguments)

    with mock.patch.object(AgentEvaluator, "run", watched):
        played = runs.sandboxed(tmp_path, parallelism=parallelism, target=target(concurrency=concurrency))
    assert played.most_in_flight == concurrency
    assert [config.parallelism for config in scored] == [parallelism]


def test_gyms_command_line_is_told_the_concurrency_and_not_the_parallelism(beside: Finished) -> None:
    (evaluated,) = [command for command in beside.commands if command[:2] == ["eval", "run"]]
    assert evaluated[evaluated.index("--concurrency") + 1] == "1" and beside.plan.parallelism == 4
    assert evaluated[evaluated.index("--num-repeats") + 1] == str(REPEATS)


# Collection


def test_rows_are_collected_without_any_preparation_or_download(beside: Finished) -> None:
    assert [command[:2] for command in beside.commands] == [["env", "validate"], ["env", "start"], ["eval", "run"]]
    evaluated = beside.commands[2]
    assert "--no-serve" in evaluated
    assert evaluated[evaluated.index("--input") + 1] == str(beside.gym_run / "gym_input.jsonl")
    assert not [argument for command in beside.commands for argument in command if "split" in argument]


@pytest.mark.parametrize("placement", ["whole", "beside"])
def test_gyms_own_files_have_their_documented_names(placement: str, request: pytest.FixtureRequest) -> None:
    run: Finished = request.getfixturevalue(placement)
    for name in ("gym_input.jsonl", "rollouts.jsonl", "rollouts_failures.jsonl", "rollouts_aggregate_metrics.json"):
        assert (run.gym_run / name).is_file(), name
    captures = {file.name for file in (run.gym_run / "model_calls").iterdir()}
    assert captures == {f"{task}-{repeat}.capture.jsonl" for task in range(len(ROWS)) for repeat in range(REPEATS)}


def test_gyms_output_is_kept_in_its_documented_files(beside: Finished) -> None:
    for name in ("gym_env.log", "gym_eval.stdout.log", "gym_eval.stderr.log"):
        assert (beside.gym_run / name).is_file(), name
    assert "servers ready" in (beside.gym_run / "gym_env.log").read_text()


def test_a_failed_rollout_stands_in_the_failures_file_and_is_no_zero(partly: Finished) -> None:
    failures = partly.lines("gym_run/rollouts_failures.jsonl")
    assert [(each["_ng_task_index"], each["_ng_rollout_index"]) for each in failures] == [
        (int(BROKEN), n) for n in (0, 1)
    ]
    assert len(partly.lines("gym_run/rollouts.jsonl")) == 8
    assert not [score for score in partly.lines("scores.jsonl") if score["status"] == "failed" and score["outputs"]]


async def test_a_job_never_continues_what_another_one_collected(tmp_path: Path) -> None:
    first = await asyncio.to_thread(runs.sandboxed, tmp_path)
    async with world(tmp_path) as w:
        foreign = w.plan(ROWS, uid="99999999-0000-0000-0000-000000000000")
        outcome = await asyncio.wait_for(w.evaluation(foreign).run(), 60)
        assert not w.model.requests
    assert outcome.state == "Failed" and first.plan.uid in outcome.message and "belongs to another" in outcome.message


async def test_gyms_whole_process_group_is_killed_when_the_grace_is_over(tmp_path: Path) -> None:
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    log = tmp_path / "gym_env.log"
    start = GymProcess.start([sys.executable, "-c", stubborn], {}, stdout=log, mask=Mask(()), grace_s=0.5)
    process = await start
    async with asyncio.timeout(60):
        while not (log.exists() and log.read_text().strip()):
            await asyncio.sleep(0.05)
    child = int(log.read_text())
    assert alive(child)
    await process.stop()
    assert process.returncode == -9
    async with asyncio.timeout(10):
        while alive(child):
            await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_installed_config_takes_the_models_route_in_its_hydra_params() -> None:
    assert "hydra_params" in inspect.signature(GymRuntimeConfig).parameters


# What only the packages' code says


def test_a_row_without_a_prompt_is_a_task_without_an_instruction_and_reaches_gym_unchanged(tmp_path: Path) -> None:
    bare = {"responses_create_params": {"input": []}, "expected_answer": "1", "prompt": "made by the environment"}
    (task,) = load(tmp_path, [bare]).tasks
    assert "instruction" not in task.inputs
    materialize_dataset([task], tmp_path / "gym_input.jsonl")
    assert json.loads((tmp_path / "gym_input.jsonl").read_text()) == bare | {"_ng_task_index": 0}


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("num_repeats", annotated_types.Ge(1)),
        ("concurrency", annotated_types.Ge(1)),
        ("startup_timeout_seconds", annotated_types.Gt(0)),
        ("collection_timeout_seconds", annotated_types.Gt(0)),
        ("shutdown_grace_seconds", annotated_types.Gt(0)),
    ],
)
def test_a_number_has_the_lower_bound_of_the_installed_config(name: str, bound: annotated_types.BaseMetadata) -> None:
    theirs = GymRuntimeConfig.model_fields[name.replace("_seconds", "_s")]
    assert bound in theirs.metadata and bound in GymSpec.model_fields[name].metadata


def test_gyms_configuration_is_validated_before_any_server_starts(beside: Finished) -> None:
    assert [command[:2] for command in beside.commands][:2] == [["env", "validate"], ["env", "start"]]
    assert (beside.gym_run / "gym_validate.log").read_text().strip() == "ok"


def test_model_calls_are_captured_whatever_hydra_params_say(tmp_path: Path) -> None:
    off = target(hydra_params={"observability_enabled": False})
    arguments = selection_args(runtime_config(off, [route()]), tmp_path)
    assert arguments.index("++observability_enabled=true") > arguments.index("++observability_enabled=false")


def test_a_parameter_that_hydra_cannot_express_fails_a_colocated_job_by_its_value(tmp_path: Path) -> None:
    run = runs.colocated(tmp_path, target=target(hydra_params={"a": "ends with \\"}))
    assert run.outcome.state == "Failed" and "ends with a backslash" in run.outcome.message
    assert not run.commands


def test_a_row_may_name_its_agent_and_aggregates_of_several_agents_are_told_apart(tmp_path: Path) -> None:
    rows = [row(0), {**row(1), "agent_ref": {"name": "another"}}]
    run = runs.sandboxed(tmp_path, rows=rows)
    agents = {each["expected_answer"]: each["agent_ref"]["name"] for each in run.lines("gym_run/rollouts.jsonl")}
    assert agents == {"0": "mcqa_simple_agent", "1": "another"}
    names = {score["name"] for score in run.json("summary.json")["scores"]["scores"]}
    assert {f"runner.gym.{agent}.pass@1/accuracy" for agent in agents.values()} <= names
