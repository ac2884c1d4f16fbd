"""What the pages on targets, runners, metrics and terms say, as far as a Gym evaluation is concerned."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask
from nhx_evals_sdk.agent_eval.trials import AgentTaskRunner, RunAggregationsProvider

from contract import runs
from contract.runs import ROWS, Finished
from nhx_gym_operator.api.target import Target
from nhx_gym_operator.evaluator.journal import Journal, JournalHeader
from nhx_gym_operator.evaluator.trials import JournaledGymRunner
from unit.evaluator_fakes import make_plan, target

ROOT = Path(__file__).resolve().parents[2]


def runner(tmp_path: Path, **gym: object) -> JournaledGymRunner:
    async def collect(_: object) -> None:
        raise AssertionError("nothing is collected here")

    journal = Journal(tmp_path / "journal.jsonl", JournalHeader("u", "d", 1))
    return JournaledGymRunner(make_plan(tmp_path / "rows", target=target(**gym)), journal, tmp_path, collect)


def test_gym_is_the_one_target() -> None:
    assert list(Target.model_fields) == ["gym"] and Target.model_fields["gym"].is_required()
    (crd,) = [each for each in yaml.safe_load_all((ROOT / "crds/evals.nhx.io_agentevaljobs.yaml").read_text()) if each]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["target"]
    assert (list(schema["properties"]), schema["required"]) == (["gym"], ["gym"])


def test_the_evaluators_runner_keeps_the_sdks_protocols(tmp_path: Path) -> None:
    assert isinstance(runner(tmp_path), AgentTaskRunner) and isinstance(runner(tmp_path), RunAggregationsProvider)


def test_the_producer_of_a_run_is_recorded_under_a_stable_name(whole: Finished, beside: Finished) -> None:
    for run, mode in ((whole, "sandboxed"), (beside, "colocated")):
        producer = run.json("metadata.json")["target"]
        assert (producer["name"], producer["kind"], producer["config"]["mode"]) == ("gym", "runner", mode)


def test_what_is_recorded_of_a_runner_holds_no_credential(tmp_path: Path) -> None:
    params = {"judge": {"api_key": "plain", "list": [{"token": "plain"}]}, "issued": "nvapi-0123456789abcdef"}
    info = runner(tmp_path, hydra_params=params, env_vars={"DB_PASSWORD": "plain", "MODE": "strict"}).runner_info()
    assert info.config["env_vars"]["MODE"] == "strict" and info.config["hydra_params"]["judge"]["api_key"]
    assert "plain" not in str(info.config) and "0123456789abcdef" not in str(info.config)


def test_every_attempt_is_a_trial_also_one_that_failed(partly: Finished) -> None:
    trials = partly.lines("trials.jsonl")
    assert len(trials) == 2 * len(ROWS)
    assert {trial["status"] for trial in trials} == {"completed", "failed"}


def test_a_task_carries_its_instruction_its_row_and_its_metric(whole: Finished) -> None:
    for stored, source in zip(whole.lines("tasks.jsonl"), ROWS, strict=True):
        task = AgentEvalTask.model_validate(stored | {"metrics": []})
        assert task.inputs["gym_row"] == source["responses_create_params"]
        assert task.metadata["gym_row_extras"] == {"expected_answer": source["expected_answer"]}
        assert task.agent_prompt() == source["responses_create_params"]["input"][0]["content"]
        assert task.intent and stored["metrics"][0]["type"] == "gym_reward"


def test_low_rewards_are_a_measurement_and_no_failure(tmp_path: Path) -> None:
    run = runs.sandboxed(tmp_path, lambda example, text: 0.0, delay_s=0)
    assert (run.outcome.state, run.outcome.coverage) == ("Complete", 1.0)
    assert run.outcome.aggregates[0].value == 0.0


def test_a_reward_outside_0_to_1_is_kept_and_partial_credit_is_no_pass(tmp_path: Path) -> None:
    rewards = {"0": -1.0, "1": 2.5, "2": 0.5, "3": 0.999, "4": 1.0}
    run = runs.sandboxed(tmp_path, lambda example, text: rewards[example["expected_answer"]], delay_s=0)
    values = {aggregate.name: aggregate for aggregate in run.outcome.aggregates}
    reward = values["gym_reward.reward"]
    assert (reward.min, reward.max, reward.value) == (-1.0, 2.5, pytest.approx(sum(rewards.values()) / 5))
    assert values["gym_reward.reward.pass@1"].value == pytest.approx(2 / 5)


def test_another_reward_key_still_arrives_as_gyms_reward(tmp_path: Path) -> None:
    def verify(example: dict[str, object], text: str) -> float:
        example["score"] = 0.25
        return 1.0

    run = runs.sandboxed(tmp_path, verify, delay_s=0, target=target(reward_key="score"))
    assert (run.outcome.aggregates[0].name, run.outcome.aggregates[0].value) == ("gym_reward.reward", 0.25)
