"""Jobs that get stuck on real pods, by the cluster's own kubelet, controllers and API server: each is named within a
minute, as docs/troubleshooting.md says, and goes on where there is something to go on with."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from chaos import node, world
from chaos.model import GARBAGE, Model
from chaos.plan import Job, Where
from chaos.played import told_of_restart
from chaos.world import KEYS, LIGHT
from nhx_gym_operator.api.constants import CONTAINER_EVALUATE
from support import cluster, stuck
from support.cluster import Object
from support.job_watch import JobWatch, condition, is_true, phase

NAMED_SECONDS = 60
AWAY_SECONDS = 120
END_SECONDS = 240
CALL_SECONDS = 75
"""For a call to a model that never answers: longer than it takes until that is said."""
QUOTA = "pods-at-once"

pytestmark = pytest.mark.nightly


def test_a_node_that_does_not_report_is_named_and_its_pods_go_on(light: None, model: Model, watch: JobWatch) -> None:
    job = held_up(model, "silent-node")
    with node.stopped("kubelet"):
        named(watch, job, "A node is not ready", time.monotonic())
    model.release(job.name)
    went_well(watch, job)
    assert len(model.calls_of(job.name)) == len(job.rollouts), "nothing is collected again"


def test_an_evaluator_whose_node_is_drained_is_followed_by_another(light: None, model: Model, watch: JobWatch) -> None:
    job = held_up(model, "drained")
    evict(f"{job.name}-evaluator-1")
    named(watch, job, "A node is drained", time.monotonic())
    model.release(job.name)
    assert went_well(watch, job)["status"]["attempt"] == 2


def test_a_gym_host_whose_node_is_drained_is_replaced_within_the_attempt(
    light: None, model: Model, watch: JobWatch
) -> None:
    job = held_up(model, "host-drained")
    evict(f"{job.name}-host-0-1")

    def is_told(seen: Object) -> bool:
        return any(
            "EvictionByEvictionAPI" in pod.get("lostMessage", "") for pod in seen.get("status", {}).get("hostPods", ())
        )

    watch.until(LIGHT.jobs, job.name, is_told, what="the host's end is named", timeout=NAMED_SECONDS)
    model.release(job.name)
    assert went_well(watch, job)["status"]["attempt"] == 1


def test_models_that_never_answer_are_named_with_their_words_and_end_their_jobs(
    light: None, model: Model, watch: JobWatch
) -> None:
    ways = {
        "The model answers 429 for ever": ("never-429", "status=429", "HTTP 429"),
        "The model answers 500 for ever": ("never-500", "status=500", "HTTP 500"),
        "The model answers garbage": ("never-json", "garbage", GARBAGE),
        "The model sends half a stream for ever": ("never-whole", "half a stream", "stream did not end"),
    }
    jobs = {state: Job(name, Where.LIGHT, 1, 1, 1) for state, (name, _, _) in ways.items()}
    model.always |= {name: how for name, how, _ in ways.values()}
    submit(model, *jobs.values(), of_model={"timeoutSeconds": CALL_SECONDS, "maxRetries": 100})
    for state, job in jobs.items():
        until(lambda name=job.name: model.calls_of(name), f"{job.name} asks its model")
        named(watch, job, state, model.calls_of(job.name)[0].at)
    for state, job in jobs.items():
        end = watch.finished(LIGHT.jobs, job.name, timeout=END_SECONDS)
        stuck.assert_ended(state, end)
        assert ways[state][2] in condition(end, "Failed")["message"]
        (failure,) = records(job, "failure")
        assert failure["failure_class"] in ("transient", "timeout") and ways[state][2] in failure["message"]


def test_a_secret_that_is_deleted_midway_is_missed_by_the_next_attempt_which_goes_on_once_it_is_back(
    light: None, model: Model, watch: JobWatch
) -> None:
    job = held_up(model, "no-secret")
    cluster.delete("secret", KEYS, LIGHT.jobs)
    cluster.delete("pod", f"{job.name}-evaluator-1", LIGHT.jobs, wait=False)
    until(lambda: cluster.find("pod", f"{job.name}-evaluator-2", LIGHT.jobs), "the next attempt has its pods")
    named(watch, job, "A Secret is missing or late", time.monotonic())
    model.release(job.name)
    cluster.apply(*world.inputs(LIGHT.jobs, [job]))
    assert went_well(watch, job)["status"]["attempt"] == 2


def test_the_results_of_a_job_on_an_emptydir_go_with_its_evaluator(light: None, model: Model, watch: JobWatch) -> None:
    job = held_up(model, "empty-dir", results={"emptyDir": {}})
    cluster.delete("pod", f"{job.name}-evaluator-1", LIGHT.jobs, wait=False)
    named(watch, job, "The evaluator of a job on an emptyDir is lost", time.monotonic())
    calls = len(model.calls_of(job.name))
    model.release(job.name)
    time.sleep(5)
    assert len(model.calls_of(job.name)) == calls, "nothing is paid for twice"


def test_four_jobs_share_a_quota_for_two_and_all_succeed(light: None, model: Model, watch: JobWatch) -> None:
    jobs, state = [Job(f"quota-{number}", Where.LIGHT, 2, 1, 1) for number in range(4)], "The quota is used up"
    model.stops |= {job.name: 1 for job in jobs}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "4"}}}
    cluster.apply(quota | {"metadata": {"name": QUOTA, "namespace": LIGHT.jobs}})
    try:
        counted = ("--for=jsonpath={.status.hard.pods}=4", "--timeout=30s")
        cluster.kubectl("wait", f"resourcequota/{QUOTA}", f"--namespace={LIGHT.jobs}", *counted)
        began = time.monotonic()
        submit(model, *jobs)
        until(lambda: len(shown(watch, jobs, state)) >= 2, "two of the jobs wait")
        for job in shown(watch, jobs, state):
            named(watch, job, state, began)
        until(lambda: len([job for job in jobs if model.is_waiting(job.name)]) == 2, "two of the jobs run")
        for job in jobs:
            model.release(job.name)
        for job in jobs:
            assert went_well(watch, job)["status"]["attempt"] == 1
    finally:
        cluster.delete("resourcequota", QUOTA, LIGHT.jobs)


def test_an_evaluator_that_is_killed_while_the_api_server_is_away_is_named_within_a_minute_of_its_return(
    light: None, model: Model, watch: JobWatch
) -> None:
    job = held_up(model, "unseen-kill")
    evaluator = cluster.get("pod", f"{job.name}-evaluator-1", LIGHT.jobs)
    killer = threading.Timer(AWAY_SECONDS / 2, node.kill, [node.process_of(evaluator, CONTAINER_EVALUATE)])
    killer.start()
    try:
        node.kill_api_server(AWAY_SECONDS)
    finally:
        killer.join()
    back = time.monotonic()
    holds = "the evaluator's end is named"
    watch.until(LIGHT.jobs, job.name, lambda seen: told_of_restart([seen]), what=holds, timeout=NAMED_SECONDS)
    print(f"\nkilled while the API server was away: named {time.monotonic() - back:.1f} s after its return")
    model.release(job.name)
    assert "lostAttempts" not in went_well(watch, job)["status"]


# ---- what they have in common


def held_up(model: Model, name: str, **spec: Any) -> Job:
    """A job in the middle of its work, which gets no further answer until it is let go."""
    job = Job(name, Where.LIGHT, 4, 1, 1)
    model.stops[name] = 2
    submit(model, job, **spec)
    until(lambda: model.is_waiting(name), f"{name} is held up")
    return job


def submit(model: Model, *jobs: Job, of_model: Mapping[str, Any] = MappingProxyType({}), **spec: Any) -> None:
    """With these fields in their specs, and in those of their model."""
    made = [world.manifest(job, model.url, LIGHT.jobs) for job in jobs]
    for manifest in made:
        manifest["spec"] |= spec
        manifest["spec"]["models"][0] |= of_model
    cluster.apply(*world.inputs(LIGHT.jobs, list(jobs)), *made)


def evict(pod: str) -> None:
    """As `kubectl drain` of its node does."""
    path = f"/api/v1/namespaces/{LIGHT.jobs}/pods/{pod}/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": LIGHT.jobs}}
    cluster.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(body))


def named(watch: JobWatch, job: Job, state: str, since: float) -> Object:
    """The job as it shows the state in the page's words, within a minute of that moment of the monotonic clock."""
    what = f"{state}: {stuck.state(state).says}"
    seconds = 2 * NAMED_SECONDS
    found = watch.until(LIGHT.jobs, job.name, lambda seen: stuck.is_seen(state, seen), what=what, timeout=seconds)
    took = time.monotonic() - since
    stuck.assert_seen(state, found)
    assert took <= NAMED_SECONDS, f"{state}: named only after {took:.0f} s"
    print(f"\n{state}: named after {took:.1f} s")
    return found


def shown(watch: JobWatch, jobs: list[Job], state: str) -> list[Job]:
    """Those that have shown the state so far."""
    return [job for job in jobs if any(stuck.is_seen(state, seen) for seen in watch.history(LIGHT.jobs, job.name))]


def went_well(watch: JobWatch, job: Job) -> Object:
    """The job at its end: it has succeeded, with the right reward, and with each rollout recorded once."""
    end = watch.finished(LIGHT.jobs, job.name, timeout=END_SECONDS)
    assert phase(end) == "Succeeded" and is_true(end, "Complete"), end["status"]
    reward = next(entry for entry in end["status"]["aggregates"] if entry["name"] == "gym_reward.reward")
    assert (reward["value"], reward["count"]) == (job.reward, len(job.rollouts))
    recorded = [(record["task"], record["rollout"]) for record in records(job, "result")]
    assert sorted(recorded) == sorted(job.rollouts)
    return end


def records(job: Job, kind: str) -> list[dict[str, Any]]:
    """What the job's journal holds of a kind, in order."""
    journal = node.journal_of(LIGHT.jobs, f"{job.name}-results")
    found = [json.loads(line)["record"] for line in journal.read_text().splitlines()]
    return [record for record in found if record["kind"] == kind]


def until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {END_SECONDS} s: {what}"
        time.sleep(0.5)
