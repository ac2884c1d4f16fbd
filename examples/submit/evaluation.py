"""One evaluation, described once: the tasks and the runner that run_locally.py and submit.py share."""

import argparse

from nhx_evals_sdk.agent_eval.results import AgentEvalResult
from nhx_evals_sdk.agent_eval.runtimes.gym import GymAgentTaskRunner, GymRuntimeConfig, discover_gym_tasks
from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask
from nhx_evals_sdk.values.common import SecretRef


def parser(what: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=what)
    arguments.add_argument("rows", help="a Gym row file, e.g. resources_servers/mcqa/data/example.jsonl of nemo-gym")
    arguments.add_argument("--base-url", required=True, help="root of an OpenAI-compatible API, ending in /v1")
    arguments.add_argument("--model", required=True, help="the model's name there")
    return arguments


def evaluation(given: argparse.Namespace) -> tuple[list[AgentEvalTask], GymAgentTaskRunner]:
    runner = GymAgentTaskRunner(
        config=GymRuntimeConfig(
            agent="simple_agent",
            agent_config="responses_api_agents/simple_agent/configs/simple_agent.yaml",
            resources_server="mcqa",
            num_repeats=2,
            startup_timeout_s=480,
            hydra_params={
                "policy_base_url": given.base_url,
                "policy_model_name": given.model,
                # Only the reference: a local run finds the value in the environment variable POLICY_KEY, a job in
                # the Secret `policy-key`, under the key `value`.
                "policy_api_key": "${oc.env:POLICY_API_KEY}",
            },
            env_secrets={"POLICY_API_KEY": SecretRef("policy-key")},
        )
    )
    return discover_gym_tasks(given.rows), runner


def print_scores(result: AgentEvalResult) -> None:
    for score in result.summary.scores.scores:
        print(f"{score.name}: {score.headline_value}")
