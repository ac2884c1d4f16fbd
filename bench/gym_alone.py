"""`gym env start` and `gym eval run` through the SDK's own runner, inside the nhx-gym-tasks image.

Prints how long `gym eval run` took, its own start included, behind SECONDS.
"""

import os
import sys
import time

from nhx_evals_sdk.agent_eval.evaluator import AgentEvalRunConfig, AgentEvaluator
from nhx_evals_sdk.agent_eval.runtimes.gym import GymAgentTaskRunner, GymRuntimeConfig, discover_gym_tasks


class TimedRunner(GymAgentTaskRunner):
    async def _collect_rollouts(self, *arguments, **named):
        started = time.monotonic()
        await super()._collect_rollouts(*arguments, **named)
        print("SECONDS", time.monotonic() - started, flush=True)


rows, base_url, repeats = sys.argv[1:]
config = GymRuntimeConfig(
    agent="simple_agent",
    agent_config="responses_api_agents/simple_agent/configs/simple_agent.yaml",
    resources_server="mcqa",
    model_type="vllm_model",
    num_repeats=int(repeats),
    concurrency=8,
    hydra_params={
        "policy_base_url": base_url,
        "policy_api_key": os.environ["POLICY_KEY"],
        "policy_model_name": "scripted",
        "skip_venv_if_present": True,
        "uv_venv_dir": os.environ["NEMO_GYM_VENV_DIR"],
    },
)
AgentEvaluator().run_sync(
    tasks=discover_gym_tasks(f"/opt/nhx/datasets/{rows}"),
    target=TimedRunner(config=config),
    config=AgentEvalRunConfig(work_dir="/tmp/run"),
)
