"""The condition Running, from what the evaluator answers."""

import pytest

from nhx_gym_operator.api.wire.endpoints import Stage
from nhx_gym_operator.controller.draft import StatusDraft
from nhx_gym_operator.controller.policies import running
from support.controller_values import NOW, accepted_status, condition, job, progress

COLLECTING = [condition("Running", True, "Collecting", message="as before")]


@pytest.mark.parametrize(
    ("before", "seen", "expected"),
    [
        ([], None, ("False", "PodsCreated", "the job's pods were created")),
        ([], progress(Stage.STARTING), ("False", "PodsCreated", "the job's pods were created")),
        ([], progress(Stage.STARTING, message="waits for host 0"), ("False", "PodsCreated", "waits for host 0")),
        ([], progress(), ("True", "Collecting", "rollouts are being collected")),
        ([], progress(message="a host was lost"), ("True", "Collecting", "a host was lost")),
        ([], progress(Stage.SCORING), ("True", "Scoring", "the rollouts are being scored")),
        ([], progress(Stage.DONE), ("True", "Scoring", "the rollouts are being scored")),
        (COLLECTING, None, ("True", "Collecting", "as before")),
        (COLLECTING, progress(Stage.STARTING), ("True", "Collecting", "as before")),
    ],
)
def test_a_job_runs_from_its_first_rollout_on_and_stays_so(before, seen, expected):
    draft = StatusDraft(job(status=accepted_status(conditions=before)), NOW)
    running.show(draft, seen)
    shown = draft.condition("Running")
    assert (shown["status"], shown["reason"], shown["message"]) == expected
