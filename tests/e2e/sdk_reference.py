"""The same evaluation by NVIDIA's SDK alone: no operator, no gateway, no journal. Runs inside the nhx-gym-tasks image.

Prints the run's summary as one line of JSON behind SUMMARY, behind FILES what it left in gym_run, by name with the keys
of each file's first row, behind SECONDS how long `gym eval run` took, its own start included, and behind USER whose ids
it had.
"""

import json
import os
import sys
import time
from pathlib import Path

from nhx_evals_sdk.agent_eval.evaluator import AgentEvalRunConfig, AgentEvaluator
from nhx_evals_sdk.agent_eval.runtimes.gym import GymAgentTaskRunner, GymRuntimeConfig, discover_gym_tasks


class TimedRunner(GymAgentTaskRunner):
    async def _collect_rollouts(self, *arguments, **named):
        started = time.monotonic()
        await super()._collect_rollouts(*arguments, **named)
        print("SECONDS", time.monotonic() - started, flush=True)


def keys_of(file):
    if file.suffix != ".jsonl":
        return []
    with file.open() as lines:
        return sorted(json.loads(next(lines, "{}")))


rows, base_url, repeats = sys.argv[1:]
tasks = discover_gym_tasks(f"/opt/nhx/datasets/{rows}")
config = GymRuntimeConfig(
    agent="simple_agent",
    agent_config="responses_api_agents/simple_agent/configs/simple_agent.yaml",
    resources_server="mcqa",
    model_type="vllm_model",
    num_repeats=int(repeats),
    concurrency=8,
    startup_timeout_s=500,
    hydra_params={
        "policy_base_url": base_url,
        "policy_api_key": os.environ["POLICY_KEY"],
        "policy_model_name": "scripted",
        "skip_venv_if_present": True,
        "uv_venv_dir": os.environ["NEMO_GYM_VENV_DIR"],
    },
)
result = AgentEvaluator().run_sync(
    tasks=tasks, target=TimedRunner(config=config), config=AgentEvalRunConfig(work_dir="/tmp/run")
)
folder = Path("/tmp/run/gym_run")
files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
print(f"USER {os.getuid()}:{os.getgid()}", flush=True)
print("FILES", json.dumps({file.relative_to(folder).as_posix(): keys_of(file) for file in files}), flush=True)
print("SUMMARY", json.dumps(result.summary.model_dump(mode="json")), flush=True)
