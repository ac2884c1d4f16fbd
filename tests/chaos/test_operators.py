"""Two operators on real pods: one acts, the other takes over, and nothing is made twice."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chaos import node, world
from chaos.model import Model
from chaos.plan import Job, Where
from chaos.world import LIGHT
from support import cluster
from support.job_watch import JobWatch, condition, ended, is_true, phase

FAIL_OVER_SECONDS = 20
END_SECONDS = 600


@contextmanager
def made(path: str) -> Iterator[None]:
    """Every pod with the jobs that there is meanwhile, as `<uid> <name>` in the file of that path."""
    columns = "custom-columns=UID:.metadata.uid,NAME:.metadata.name"
    command = ["kubectl", "get", "pods", f"--namespace={LIGHT.jobs}", "--watch", f"--output={columns}", "--no-headers"]
    with open(path, "w") as out:
        process = subprocess.Popen(command, stdout=out, env=cluster.environment())
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=10)


def halves(word: str) -> tuple[list[Job], list[Job]]:
    """Two jobs to submit before something happens to the leader, and two for after it. What they name is there."""
    some = [Job(f"{word}-{number}", Where.LIGHT, 4, 1, 2) for number in range(4)]
    cluster.apply(*world.inputs(LIGHT.jobs, some))
    return some[:2], some[2:]


def submit(some: list[Job], model: Model) -> None:
    cluster.apply(*(world.manifest(job, model.url, LIGHT.jobs) for job in some))


def each_ended_well_and_was_made_once(some: list[Job], watch: JobWatch, path: str) -> None:
    for job in some:
        state = watch.finished(LIGHT.jobs, job.name, timeout=END_SECONDS)
        assert phase(state) == "Succeeded", state["status"]
        assert state["status"]["attempt"] == 1
        reward = next(entry for entry in state["status"]["aggregates"] if entry["name"] == "gym_reward.reward")
        assert (reward["value"], reward["count"]) == (job.reward, len(job.rollouts))
    with open(path) as lines:
        seen = {tuple(line.split()) for line in lines}
    for job in some:
        names = [name for _, name in seen if name.startswith(f"{job.name}-")]
        assert len(names) == len(set(names)) == 2, f"evaluator and host, each once, are the pods of {job.name}: {names}"


@pytest.fixture
def seen(tmp_path) -> Iterator[str]:
    path = str(tmp_path / "pods")
    with made(path):
        yield path


@pytest.mark.nightly
def test_a_killed_leader_is_followed_within_twenty_seconds(
    light: None, model: Model, watch: JobWatch, seen: str
) -> None:
    """By the other one, or by itself in its restarted container, whoever comes first."""
    _, process = LIGHT.leader()
    before, later = halves("killed")
    submit(before, model)
    began = time.monotonic()
    node.kill(process)
    node.until_gone(process)
    last = LIGHT.lease()["renewTime"]
    submit(later, model)
    while LIGHT.lease()["renewTime"] == last:
        assert time.monotonic() - began < FAIL_OVER_SECONDS, "nobody renews the Lease"
        time.sleep(0.2)
    print(f"\nkilled leader: the Lease was renewed after {time.monotonic() - began:.1f} s")
    each_ended_well_and_was_made_once(before + later, watch, seen)


def test_a_frozen_leader_is_followed_by_the_other_and_acts_no_more(
    light: None, model: Model, watch: JobWatch, seen: str
) -> None:
    """As on a node out of reach: it is there, cannot let the Lease go, and comes back later."""
    holder, process = LIGHT.leader()
    before, later = halves("frozen")
    submit(before, model)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        # tini waits; what acts is its child.
        for child in children(process.pid):
            os.kill(child, signal.SIGSTOP)
        began = time.monotonic()
        submit(later, model)
        while LIGHT.lease()["holderIdentity"] == holder:
            assert time.monotonic() - began < FAIL_OVER_SECONDS, "the Lease is still held by the frozen operator"
            time.sleep(0.2)
        took = time.monotonic() - began
        time.sleep(2)
    finally:
        for pid in (*children(process.pid), process.pid):
            os.kill(pid, signal.SIGCONT)
    print(f"\nfrozen leader: the other one held the Lease after {took:.1f} s")
    each_ended_well_and_was_made_once(before + later, watch, seen)
    assert LIGHT.lease()["holderIdentity"] != holder


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


@pytest.mark.nightly
def test_a_job_that_ended_while_no_operator_was_there_has_its_numbers_from_its_claim_when_its_evaluator_is_gone(
    light: None, model: Model, watch: JobWatch
) -> None:
    """As in a night in which first the operator's node is cleaned up, and then the job's."""
    job = Job("unseen", Where.LIGHT, 4, 1, 2)
    model.stops[job.name] = 1
    cluster.apply(*world.inputs(LIGHT.jobs, [job]))
    submit([job], model)
    watch.until(LIGHT.jobs, job.name, lambda state: is_true(state, "Running"), what="Running", timeout=END_SECONDS)
    evaluator, here = f"pod/{job.name}-evaluator-1", f"--namespace={LIGHT.jobs}"
    with no_operators():
        model.release(job.name)
        until = ("--for=jsonpath={.status.phase}=Succeeded", f"--timeout={END_SECONDS}s")
        cluster.kubectl("wait", evaluator, here, *until, timeout=END_SECONDS + 30)
        cluster.kubectl("delete", evaluator, here, "--force", "--grace-period=0")
        assert not ended(cluster.get("aej", job.name, LIGHT.jobs)), "an operator saw how the evaluator ended"
        calls = len(model.calls_of(job.name))
    state = watch.finished(LIGHT.jobs, job.name, timeout=END_SECONDS)
    assert phase(state) == "Succeeded", state["status"]
    assert state["status"]["attempt"] == 1 and "lostAttempts" not in state["status"]
    reward = next(entry for entry in state["status"]["aggregates"] if entry["name"] == "gym_reward.reward")
    assert (reward["value"], reward["count"]) == (job.reward, len(job.rollouts))
    said = {condition(before, "Running").get("reason") for before in watch.history(LIGHT.jobs, job.name)}
    assert "ReadingOutcome" in said
    assert len(model.calls_of(job.name)) == calls, "nothing is collected again"


@contextmanager
def no_operators() -> Iterator[None]:
    scale_operators(0)
    try:
        yield
    finally:
        scale_operators(2)
        LIGHT.leader()


def scale_operators(number: int) -> None:
    """Returns when so many are there."""
    here = f"--namespace={LIGHT.namespace}"
    cluster.kubectl("scale", f"deployment/{LIGHT.name}", here, f"--replicas={number}")
    deadline = time.monotonic() + world.READY_SECONDS
    while len(LIGHT.operators()) != number:
        assert time.monotonic() < deadline, f"there are the operators {list(LIGHT.operators())}, not {number}"
        time.sleep(0.5)
