"""`helm uninstall` with jobs there: they stay, those that run go on, any can be deleted, and nothing hangs."""

from __future__ import annotations

import time

import pytest

from chaos import world
from chaos.model import Model
from chaos.plan import Job, Where
from chaos.run import PIECES
from chaos.world import LIGHT
from support import cluster
from support.job_watch import JobWatch, phase

pytestmark = pytest.mark.nightly

GONE_SECONDS = 60
END_SECONDS = 600
_KINDS = "deployments,replicasets,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies"
"""All that is there but the Lease, which the operators made and nobody removes."""


def of_the_job(uid: str) -> set[str]:
    found = cluster.listed(PIECES, LIGHT.jobs, {"evals.nhx.io/job-uid": uid})
    return {f"{entry['kind']}/{entry['metadata']['name']}" for entry in found}


def of_the_release() -> list[str]:
    """What Kubernetes itself puts into each namespace is not of it."""
    there = cluster.listed(_KINDS, LIGHT.namespace)
    found = {f"{entry['kind']}/{entry['metadata']['name']}" for entry in there}
    return sorted(found - {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"})


def until(holds, what: str, seconds: float = GONE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.5)


def test_uninstalling_leaves_jobs_that_go_on_can_be_deleted_and_are_taken_up_again(
    light: None, model: Model, watch: JobWatch
) -> None:
    kept, deleted, late = (Job(name, Where.LIGHT, 4, 1, 1) for name in ("kept", "deleted", "late"))
    model.stops |= {"kept": 2, "deleted": 2}
    cluster.apply(*world.inputs(LIGHT.jobs, [kept, deleted, late]))
    cluster.apply(*(world.manifest(job, model.url, LIGHT.jobs) for job in (kept, deleted)))
    until(lambda: model.is_waiting("kept") and model.is_waiting("deleted"), "both jobs run", END_SECONDS)
    uids = {job.name: cluster.get("aej", job.name, LIGHT.jobs)["metadata"]["uid"] for job in (kept, deleted)}

    began = time.monotonic()
    LIGHT.uninstall()
    assert time.monotonic() - began < GONE_SECONDS
    until(lambda: not LIGHT.operators(), "the operators are gone")
    until(lambda: not of_the_release(), "what the release had is gone")
    assert cluster.find("crd", "agentevaljobs.evals.nhx.io")

    # Nobody has a say in a deletion but Kubernetes itself.
    left = {job["metadata"]["name"]: job["metadata"].get("finalizers") for job in cluster.listed("aej", LIGHT.jobs)}
    assert {"kept", "deleted"} <= left.keys() and not any(left.values())
    cluster.apply(world.manifest(late, model.url, LIGHT.jobs))
    cluster.delete("aej", "deleted", LIGHT.jobs, timeout=GONE_SECONDS)
    until(lambda: not of_the_job(uids["deleted"]), "the deleted job's objects are gone", 2 * GONE_SECONDS)

    # The other one ends without an operator, and its status as soon as there is one again.
    model.release("kept")
    until(lambda: "Succeeded" in _evaluator_phases(uids["kept"]), "the evaluator ends", END_SECONDS)
    assert phase(cluster.get("aej", "kept", LIGHT.jobs)) == "Running"
    LIGHT.install()
    for job in (kept, late):
        state = watch.finished(LIGHT.jobs, job.name, timeout=END_SECONDS)
        assert phase(state) == "Succeeded", state["status"]
        reward = next(entry for entry in state["status"]["aggregates"] if entry["name"] == "gym_reward.reward")
        assert (reward["value"], reward["count"]) == (job.reward, len(job.rollouts))
    assert len(model.calls_of("kept")) == len(kept.rollouts), "a rollout was paid for twice"


def _evaluator_phases(uid: str) -> list[str]:
    pods = cluster.listed("pods", LIGHT.jobs, {"evals.nhx.io/job-uid": uid, "evals.nhx.io/role": "evaluator"})
    return [pod["status"]["phase"] for pod in pods]
