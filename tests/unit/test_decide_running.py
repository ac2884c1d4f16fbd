"""A job whose pods exist: what is shown, and what is made again when it goes missing."""

import pytest

from nhx_gym_operator.api.conditions import PodReason
from nhx_gym_operator.api.fileset import FileSetSpec
from nhx_gym_operator.api.wire.endpoints import EgressUse, ModelUsage, Stage
from nhx_gym_operator.api.wire.reports import GATE_OPEN_EXIT_CODE
from nhx_gym_operator.api.wire.reports import Staged as Found
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.observation import PodEvent, PodsRefused
from nhx_gym_operator.workloads import secrets
from nhx_gym_operator.workloads.workload import StagedFiles
from support.controller_values import (
    CREATED,
    NOW,
    accepted_status,
    after,
    condition,
    condition_of,
    ended,
    evaluator,
    holds,
    host,
    job,
    kinds,
    observe,
    progress,
    running,
    waiting,
    workload,
)

STARTED = {"agent-evaluate": running()}
SERVING = {"sandbox-gate": ended(), "gym-host": running()}


def working(**changes):
    of = workload()
    pods = (
        evaluator(of, states=STARTED, phase="Running", ip="10.1.0.5"),
        host(of, states=SERVING, phase="Running"),
    )
    return observe(**({"pods": pods} | changes))


def settled(observation, moment=NOW):
    """The observation with the status that was decided for it."""
    status = decide(observation, moment).status
    return observe(
        job(status=status), **{name: getattr(observation, name) for name in ("pods", "progress", "pod_events")}
    )


@pytest.mark.parametrize(
    "observation",
    [observe(), working(), working(progress=progress(done=3, mean_reward=0.5))],
    ids=["pods pending", "pods running", "collecting"],
)
def test_an_unchanged_observation_asks_for_nothing_and_keeps_its_status(observation):
    same = settled(observation)
    again = decide(same, after(30))
    assert again.actions == ()
    assert again.status == same.job.status.to_dict()


def test_progress_shows_counts_and_the_running_mean():
    decision = decide(working(progress=progress(done=5, failed=1, mean_reward=5 / 6)), NOW)
    assert decision.status["progress"] == {
        "done": 5,
        "failed": 1,
        "total": 10,
        "summary": "6/10",
        "meanReward": 5 / 6,
    }
    assert decision.status["reward"] == "0.83"
    assert decision.status["hosts"] == {"ready": 1, "desired": 1, "summary": "1/1"}
    assert decision.status["phase"] == "Running"
    assert condition_of(decision, "Running")["reason"] == "Collecting"


def test_usage_is_shown_as_it_was_when_the_last_rollout_ended():
    def at(done, calls):
        usage = {"policy": ModelUsage(calls=calls)}
        return working(progress=progress(done=done, mean_reward=0.5).model_copy(update={"usage": usage}))

    assert "usage" not in decide(at(0, 3), NOW).status
    first = decide(at(1, 4), NOW).status
    assert first["usage"]["policy"]["calls"] == 4
    owner = job(status=first)
    assert decide(observe(owner, pods=at(1, 7).pods, progress=at(1, 7).progress), NOW).status["usage"] == first["usage"]
    later = decide(observe(owner, pods=at(2, 8).pods, progress=at(2, 8).progress), NOW).status
    assert later["usage"]["policy"]["calls"] == 8


ASKED = EgressUse(requests=5, refused=2, sent=10, received=20, passed={"a.example": 2, "*.b.example:8443": 1})


def asking(used):
    owner = job(status=accepted_status(), egress={"allow": ["*.b.example:8443", "a.example"]})
    return observe(owner, pods=working().pods, progress=progress(done=1, mean_reward=0.5, egress=used))


def test_what_a_sandbox_asked_of_other_hosts_is_counted_by_the_jobs_own_list():
    assert decide(asking(ASKED), NOW).status["egress"] == {
        "requests": 5,
        "refused": 2,
        "bytesSent": 10,
        "bytesReceived": 20,
        "passed": [{"entry": "a.example", "requests": 2}, {"entry": "*.b.example:8443", "requests": 1}],
    }
    assert "egress" not in decide(asking(None), NOW).status


def test_no_name_gets_into_a_status_that_the_job_does_not_list():
    lies = ASKED.model_copy(update={"passed": {"\x1b[31mowned": 1, "evil.example": 9, "a.example": 1}})
    assert decide(asking(lies), NOW).status["egress"]["passed"] == [{"entry": "a.example", "requests": 1}]


def test_a_job_starts_until_collection_begins():
    decision = decide(working(progress=progress(Stage.STARTING, hosts_ready=0, message="waits for gym host 0")), NOW)
    assert decision.status["phase"] == "Starting"
    assert decision.status["progress"]["summary"] == "0/10"
    assert decision.status["hosts"]["summary"] == "0/1"
    assert condition_of(decision, "Running")["message"] == "waits for gym host 0"
    assert condition_of(decision, "SandboxReady")["reason"] == "HostStarting"


def test_scoring_is_still_running():
    decision = decide(working(progress=progress(Stage.SCORING, done=10)), NOW)
    assert condition_of(decision, "Running")["reason"] == "Scoring"
    assert decision.status["phase"] == "Running"


def test_results_that_are_uploaded_are_not_said_to_be_scored():
    decision = decide(working(progress=progress(Stage.UPLOADING, done=10)), NOW)
    condition = condition_of(decision, "Running")
    assert (condition["reason"], condition["message"]) == ("Uploading", "the results are being uploaded")
    assert decision.status["phase"] == "Running"


def test_an_operator_that_came_back_keeps_what_the_status_says_until_it_knows_more():
    owner = job(
        status=accepted_status(
            phase="Running",
            conditions=[
                condition("Accepted", True, "Accepted"),
                condition("SandboxReady", True, "HostReady"),
                condition("Running", True, "Collecting"),
            ],
        )
    )
    assert decide(working(job=owner), NOW).status["phase"] == "Running"


def test_progress_of_another_attempt_is_not_shown():
    assert "progress" not in decide(working(progress=progress(attempt=2, done=9)), NOW).status


def test_progress_is_read_from_the_pod_once_it_runs():
    assert decide(observe(), NOW).poll is None
    source = decide(working(), NOW).poll
    assert source.url == "http://10.1.0.5:8080/progress"
    assert source.token not in repr(source)
    assert source.images["gymHost"] == "reg/gym-host@sha256:00000000"


def test_images_that_ran_are_named_by_digest():
    images = decide(working(), NOW).status["ran"]["images"]
    assert images["evaluator"] == "reg/agent-evaluate@sha256:00000000"
    assert images["gymHost"] == "reg/gym-host@sha256:00000000"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"service": None}, ["Apply Service mcqa"]),
        ({"policies": ()}, ["Apply NetworkPolicy mcqa-host", "Apply NetworkPolicy mcqa-evaluator"]),
        ({"claim": None}, ["Apply PersistentVolumeClaim mcqa-results"]),
    ],
)
def test_a_child_that_was_deleted_is_made_again(changes, expected):
    assert kinds(decide(working(**changes), NOW)) == expected


def test_what_was_refused_to_a_running_job_is_not_asked_for_again_before_its_time():
    refused = PodsRefused(PodReason.POD_REFUSED, "quota", after(3))
    decision = decide(working(policies=(), refusal=refused), NOW)
    assert kinds(decision) == []
    assert decision.requeue_after == 3
    assert "Apply NetworkPolicy mcqa-host" in kinds(decide(working(policies=(), refusal=refused), after(3)))


def test_a_host_that_was_deleted_is_replaced_in_the_same_attempt():
    pods = (evaluator(workload(), states=STARTED, phase="Running"),)
    shown = kinds(decide(working(pods=pods), NOW))
    assert shown[-1] == "CreateTogether mcqa-host-0-1"


def test_a_host_that_crashed_is_removed_after_the_evaluator_had_its_say():
    crashed = {"sandbox-gate": ended(), "gym-host": ended(137, at=CREATED, reason="OOMKilled")}
    pods = (evaluator(workload(), states=STARTED, phase="Running"), host(workload(), states=crashed, phase="Failed"))
    early = decide(working(pods=pods), after(-50))
    assert early.actions == () and early.requeue_after == pytest.approx(5.0)
    assert kinds(decide(working(pods=pods), NOW)) == ["DeletePod mcqa-host-0-1"]


# Of several hosts

THREE = job(status=accepted_status(), hosts=3)


def of_three(*hosts, ready=None, message="", **changes):
    """A job of three hosts whose evaluator collects with as many of them as are there."""
    pods = (evaluator(workload(THREE), states=STARTED, phase="Running"), *hosts)
    heard = progress(hosts=3, hosts_ready=len(hosts) if ready is None else ready, message=message)
    return observe(THREE, **({"pods": pods, "progress": heard} | changes))


def serving(ordinal):
    return host(workload(THREE), ordinal, states=SERVING, phase="Running")


def test_hosts_that_are_gone_are_made_again_one_by_one_and_the_job_runs_on():
    decision = decide(of_three(serving(1), message="1 of 3 gym hosts take rollouts; waiting for gym host 0"), NOW)
    made = [shown for shown in kinds(decision) if shown.startswith("CreateTogether")]
    assert made == ["CreateTogether mcqa-host-0-1", "CreateTogether mcqa-host-2-1"]
    assert decision.status["hosts"] == {"ready": 1, "desired": 3, "summary": "1/3"}
    assert (decision.status["phase"], holds(decision, "SandboxReady")) == ("Running", True)
    assert condition_of(decision, "SandboxReady")["message"].startswith("1 of 3 gym hosts take rollouts")


def test_a_host_that_was_lost_twice_waits_and_the_one_beside_it_does_not():
    lost = tuple({**serving(0), "metadata": {**serving(0)["metadata"], "uid": f"gone-{n}"}} for n in range(2))
    ended_now = {"gym-host": ended(1, at="2026-11-29T12:00:00Z", reason="Error")}
    lost = tuple({**pod, "status": host(workload(), states=ended_now)["status"]} for pod in lost)
    decision = decide(of_three(serving(1), ghosts=lost), NOW)
    assert [shown for shown in kinds(decision) if "Together" in shown] == ["CreateTogether mcqa-host-2-1"]
    assert decision.requeue_after == 10


def test_a_host_that_is_refused_ends_no_job_whose_others_take_rollouts():
    refused = PodsRefused(PodReason.POD_REFUSED, "exceeded quota: pods", after(5))
    for moment in (NOW, after(36000)):
        decision = decide(of_three(serving(0), serving(1), refusal=refused), moment)
        sandbox = condition_of(decision, "SandboxReady")
        assert (sandbox["status"], sandbox["reason"]) == ("True", "SomeHostsReady")
        assert "exceeded quota: pods" in sandbox["message"]
        assert not holds(decision, "Failed")
    assert "CreateTogether mcqa-host-2-1" in kinds(decision)


def test_a_host_that_finds_no_node_is_said_and_ends_nothing_while_others_take_rollouts():
    stuck = host(workload(THREE), 2, conditions=UNSCHEDULABLE)
    seen = of_three(serving(0), serving(1), stuck, ready=2, message="2 of 3 gym hosts take rollouts")
    decision = decide(seen, after(36000))
    sandbox = condition_of(decision, "SandboxReady")
    assert (sandbox["status"], sandbox["reason"]) == ("True", "SomeHostsReady")
    assert sandbox["message"] == "2 of 3 gym hosts take rollouts; pod 'mcqa-host-2-1' finds no node: 0/1 nodes"
    assert decision.status["phase"] == "Running"
    assert decision.requeue_after is None


def test_hosts_that_all_stay_away_end_the_job():
    stuck = [host(workload(THREE), n, conditions=UNSCHEDULABLE) for n in range(3)]
    decision = decide(of_three(*stuck, progress=None), after(36000))
    assert condition_of(decision, "Failed")["reason"] == "PodStartTimeout"


EVICTED = {"reason": "Evicted", "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "10Gi".'}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, "pod 'mcqa-host-0-1' ended without an outcome: OOMKilled, exit code 137"),
        (EVICTED, "pod 'mcqa-host-0-1' ended without an outcome: Evicted: Usage of EmptyDir volume \"tmp\" exceeds"),
    ],
)
def test_a_lost_hosts_condition_says_how_it_ended_also_once_its_pod_is_gone(status, words):
    crashed = {"sandbox-gate": ended(), "gym-host": ended(137, at=CREATED, reason="OOMKilled")}
    waits = progress(hosts_ready=0, message="waiting for gym host 0 to answer again")
    gone = host(workload(), states=crashed, phase="Failed", **status)
    alone = (evaluator(workload(), states=STARTED, phase="Running"),)
    for seen in ({"pods": (*alone, gone)}, {"pods": alone, "ghosts": (gone,)}):
        sandbox = condition_of(decide(working(progress=waits, **seen), NOW), "SandboxReady")
        assert sandbox["reason"] == "HostLost"
        assert sandbox["message"].startswith(f"waiting for gym host 0 to answer again; {words}")


def test_an_open_sandbox_fails_the_job_in_the_gates_words():
    gate = {"sandbox-gate": ended(GATE_OPEN_EXIT_CODE, "sandbox-gate: still reached kubernetes-api", reason="Error")}
    pods = (evaluator(workload(), states=STARTED, phase="Running"), host(workload(), states=gate, phase="Failed"))
    decision = decide(working(pods=pods), NOW)
    assert condition_of(decision, "SandboxReady")["reason"] == "SandboxOpen"
    assert condition_of(decision, "Failed")["reason"] == "SandboxOpen"
    assert "kubernetes-api" in condition_of(decision, "Failed")["message"]


# Staging

STAGED = {"gym": {"environment": {"fileSet": {"name": "mine"}}}}
FOUND = Found(digest="sha256:new", files=3, bytes=99)
AT = "2026-11-29T11:59:30Z"


def file_set(**changes):
    source = FileSetSpec.model_validate({"source": {"http": {"url": "http://files/env.tgz"}}})
    return StagedFiles("mine", "uid-of-mine", 3, source, **changes)


def staging(state, status=None, **dataset):
    owner = job(status=accepted_status(**(status or {})), **STAGED)
    of = workload(owner, environment=file_set(), dataset=file_set(file="rows.jsonl") if dataset else None)
    states = {"stage-environment": state, **({"stage-dataset": dataset["dataset"]} if dataset else {})}
    pods = (evaluator(of, states=states, phase="Pending"), host(of))
    return decide(observe(owner, of, pods=pods), NOW)


def test_staging_shows_while_it_lasts():
    decision = staging(running())
    assert decision.status["phase"] == "Staging"
    assert condition_of(decision, "Staged")["reason"] == "Staging"


def test_a_job_is_staged_when_all_its_sets_are():
    decision = staging(ended(message=FOUND.model_dump_json()), dataset=running())
    assert condition_of(decision, "Staged")["reason"] == "Staging"
    assert holds(
        staging(ended(message=FOUND.model_dump_json()), dataset=ended(message=FOUND.model_dump_json())), "Staged"
    )


def test_a_staged_environment_lets_the_job_start_and_shows_its_digest():
    decision = staging(ended(message=FOUND.model_dump_json(), at=AT))
    assert holds(decision, "Staged")
    assert decision.status["phase"] == "Starting"
    assert decision.status["ran"]["environmentDigest"] == "sha256:new"


def test_what_a_pod_found_is_passed_on_to_the_set_that_it_read():
    (report,) = staging(ended(message=FOUND.model_dump_json(), at=AT)).staged
    assert (report.plan.uid, report.plan.generation, report.staged) == ("uid-of-mine", 3, FOUND)
    assert report.seen_by == {"job": "mcqa", "attempt": 1, "time": AT}
    (failure,) = staging(ended(1, "HTTP 404", at=AT)).staged
    assert failure.staged is None and failure.failure == "HTTP 404"


def test_content_that_changed_between_two_attempts_is_said_with_both_digests_and_stays_so():
    state = ended(message=FOUND.model_dump_json(), at=AT)
    first = staging(state, {"ran": {"environmentDigest": "sha256:old"}})
    again = staging(state, {"ran": {k: v for k, v in first.status["ran"].items() if k != "images"}})
    for decision in (first, again):
        message = condition_of(decision, "Staged")["message"]
        assert "sha256:old" in message and "sha256:new" in message
        assert decision.status["ran"]["environmentDigest"] == "sha256:new"
        assert decision.status["ran"]["earlierEnvironmentDigests"] == ["sha256:old"]
    same = staging(state, {"ran": {"environmentDigest": "sha256:new"}})
    assert "earlierEnvironmentDigests" not in same.status["ran"]


@pytest.mark.parametrize("dataset", [{}, {"dataset": ended(1, "no objects under s3://b/rows", reason="Error")}])
def test_a_staging_that_failed_ends_the_job_in_its_own_words(dataset):
    words = "no objects under s3://b/rows" if dataset else "no nemo-environment.yaml at the root of the environment"
    state = ended(message=FOUND.model_dump_json()) if dataset else ended(1, words, reason="Error")
    decision = staging(state, **dataset)
    assert condition_of(decision, "Failed")["reason"] == "StagingFailed"
    assert words in condition_of(decision, "Failed")["message"]
    assert condition_of(decision, "Staged")["status"] == "False"


# Pods that do not run

UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]

NO_MOUNT = "MountVolume.SetUp failed for volume"
NO_MODEL_SECRET = ("evaluator-1", "FailedMount", f'{NO_MOUNT} "model-key-0" : secret "model" not found')


def pending(*, states=None, events=(), host_states=None, **status):
    of = workload()
    pods = (evaluator(of, states=states, **status), host(of, states=host_states))
    noticed = tuple(PodEvent(f"uid-of-mcqa-{who}", reason, message) for who, reason, message in events)
    return observe(pods=pods, pod_events=noticed)


def test_a_hosts_problem_stands_on_its_sandbox():
    observation = pending(host_states={"gym-host": waiting("ImagePullBackOff", "reg/host")})
    assert condition_of(decide(observation, NOW), "SandboxReady")["reason"] == "ImagePullFailed"


def test_a_missing_secret_ends_the_job_with_the_inputs_deadline():
    observation = pending(events=[NO_MODEL_SECRET])
    assert not holds(decide(observation, after(230)), "Failed")
    decision = decide(observation, after(241))
    assert condition_of(decision, "Failed")["reason"] == "InputsTimeout"
    assert "'model'" in condition_of(decision, "Failed")["message"]


def test_a_token_secret_that_was_deleted_before_it_was_mounted_is_posted_again():
    name = secrets.evaluator_secret_name(workload())
    event = ("evaluator-1", "FailedMount", f'MountVolume.SetUp failed for volume "tokens" : secret "{name}" not found')
    assert kinds(decide(pending(events=[event]), NOW)) == [f"Create Secret {name}"]
