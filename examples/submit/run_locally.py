"""Runs the evaluation on this machine, with the `gym` on PATH.

POLICY_KEY=… python run_locally.py ROWS --base-url http://localhost:8000/v1 --model org/name
"""

from evaluation import evaluation, parser, print_scores
from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator

tasks, runner = evaluation(parser(__doc__).parse_args())
print_scores(AgentEvaluator().run_sync(tasks=tasks, target=runner))
