"""The condition Running, from what the evaluator answers."""

import re

import pytest

from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.api.wire.endpoints import Stage
from nhx_gym_operator.controller.attempt import Attempt
from nhx_gym_operator.controller.policies import running
from nhx_gym_operator.controller.status_draft import StatusDraft
from support.controller_values import (
    NOW,
    accepted_status,
    after,
    condition,
    ended,
    evaluator,
    job,
    observe,
    outcome,
    progress,
    started_again,
    waiting,
    workload,
)
from support.controller_values import running as running_now

COLLECTING = [condition("Running", True, "Collecting", message="as before")]
SCORING = [condition("Running", True, "Scoring", message="as before")]


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
    pod = evaluator(workload(), states={"agent-evaluate": running_now()}, phase="Running")
    running.show(draft, observe(pods=(pod,), progress=seen), Attempt(1, pod), NOW)
    shown = draft.condition("Running")
    assert (shown["status"], shown["reason"], shown["message"]) == expected


@pytest.mark.parametrize(
    ("before", "seen", "expected"),
    [
        ([], None, ("False", "PodsCreated", "^pod 'mcqa-evaluator-1' runs and does not answer")),
        (COLLECTING, None, ("True", "Collecting", "^pod 'mcqa-evaluator-1' runs and does not answer")),
        (SCORING, None, ("True", "Scoring", "^pod 'mcqa-evaluator-1' runs and does not answer")),
        (COLLECTING, progress(), ("True", "Collecting", "^rollouts are being collected; pod .* does not answer")),
    ],
)
def test_an_evaluator_that_runs_and_does_not_answer_is_named(before, seen, expected):
    draft = StatusDraft(job(status=accepted_status(conditions=before)), NOW)
    pod = evaluator(workload(), states={"agent-evaluate": running_now()}, phase="Running")
    running.show(draft, observe(pods=(pod,), progress=seen, is_silent=True), Attempt(1, pod), NOW)
    shown = draft.condition("Running")
    assert (shown["status"], shown["reason"]) == expected[:2] and re.search(expected[2], shown["message"])


# A container that the kubelet starts again

AGAIN = workload(restarts=True)
SAID = encode_outcome(outcome("Running", done=3)).decode()
HOW = "the evaluator ended without an outcome: OOMKilled, exit code 137"
RECORDED = {"done": 3, "failed": 1, "total": 10, "summary": "4/10"}


def shown(pod, seen=None, life="", before=COLLECTING, **status):
    draft = StatusDraft(job(status=accepted_status(conditions=before, **status)), NOW)
    running.show(draft, observe(pods=(pod,), progress=seen, progress_life=life), Attempt(1, pod), after(-50))
    entry = draft.condition("Running")
    return entry["status"], entry["reason"], entry["message"]


def life(pod, number):
    return f"{pod['metadata']['uid']}/{number}"


@pytest.mark.parametrize(
    "state", [ended(137, SAID, reason="OOMKilled"), waiting("CrashLoopBackOff")], ids=["just killed", "waits"]
)
def test_an_evaluator_that_is_about_to_be_started_again_is_said_to_be_with_its_end_its_count_and_its_bound(state):
    pod = started_again(AGAIN, state, 0)
    words = "; it is started again in its pod, time 1 of 2 at most; 4 of 10 rollouts are recorded and stay; it waits "
    words += "until 2026-11-29T12:00:00Z at most (then the attempt is lost)"
    said = ("False", "EvaluatorRestarting", HOW + words)
    assert shown(pod, progress(), life(pod, 0), progress=RECORDED) == said


def test_last_words_that_are_no_report_are_shown():
    pod = started_again(AGAIN, ended(134, "Fatal Python error: Aborted\n", reason="Error"), 0)
    assert "without an outcome: Error, exit code 134: Fatal Python error: Aborted; it is" in shown(pod)[2]


def test_until_its_present_process_is_back_at_work_it_counts_as_restarting():
    pod = started_again(AGAIN, running_now(), 1)
    again = HOW + "; it was started again in its pod, time 1 of 2 at most"
    assert shown(pod, progress(), life(pod, 0)) == ("False", "EvaluatorRestarting", again)
    waits = progress(Stage.STARTING, message="waiting for gym host 0 to register")
    assert shown(pod, waits, life(pod, 1)) == ("False", "EvaluatorRestarting", f"{again}; {waits.message}")
    why = "the evaluator was started again in its pod (time 1), after OOMKilled, exit code 137"
    back = ("True", "Collecting", f"rollouts are being collected; {why}")
    assert shown(pod, progress(), life(pod, 1)) == back


def test_an_operator_that_has_not_asked_yet_keeps_what_was_said_of_one_that_runs():
    assert shown(started_again(AGAIN, running_now(), 1)) == ("True", "Collecting", "as before")
