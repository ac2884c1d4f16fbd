"""Runs the same evaluation on the cluster of your kubeconfig.

kubectl create secret generic policy-key --from-file=value=FILE    # FILE holds the key alone
python submit.py ROWS --base-url http://models.example.org/v1 --model org/name
"""

import sys

from evaluation import evaluation, parser, print_scores

from nhx_gym_operator.submission import GymPlacement, submit

arguments = parser(__doc__)
arguments.add_argument("--namespace", help="where the job goes; otherwise where kubectl goes")
given = arguments.parse_args()
tasks, runner = evaluation(given)
job = submit(
    tasks=tasks,
    target=runner,
    # A sandboxed Gym routes rollouts to an instance, and mcqa's configuration registers the agent under this name.
    placement=GymPlacement(agent_ref_name="mcqa_simple_agent"),
    namespace=given.namespace,
)
print(f"submitted {job.namespace}/{job.name}", file=sys.stderr)
job.wait_until_done(
    timeout=1800,
    on_progress=lambda at: print(f"{at.phase} {at.done + at.failed}/{at.total} {at.message}", file=sys.stderr),
)
print_scores(job.result())
