"""What counts as a job's own: a label is not enough, since anybody may write one."""

import pytest

from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.controller.caches import Caches
from nhx_gym_operator.controller.kube import CLAIMS, EVENTS, JOBS, PODS
from nhx_gym_operator.controller.observe import Observer
from nhx_gym_operator.workloads import storage
from support.controller_values import accepted_status, evaluator, host, installation, job, live, workload


class Inputs:
    """Looks nothing up."""

    ends = False

    async def read(self, *_):
        return None

    async def namespace_ends(self, *_):
        return self.ends


def raw(of: AgentEvalJob):
    body = of.model_dump(mode="json", by_alias=True, exclude_none=True)
    body["metadata"]["resourceVersion"] = "1"
    return body


def versioned(pod, version="5"):
    pod["metadata"] |= {"resourceVersion": version}
    return pod


@pytest.fixture
def caches():
    caches = Caches(lambda *_: None)
    caches[JOBS].put(raw(job(status=accepted_status())))
    return caches


async def observed(caches):
    return await Observer(installation(), caches, Inputs()).observe(raw(job(status=accepted_status())), None, None)


@pytest.mark.parametrize("change", [{"namespace": "other"}, {"ownerReferences": []}, {"ownerReferences": None}])
async def test_a_pod_with_the_jobs_labels_is_not_its_own_elsewhere_or_without_its_owner(caches, change):
    forged = versioned(evaluator(workload()))
    forged["metadata"] |= {"uid": "forged", "labels": forged["metadata"]["labels"] | {"evals.nhx.io/attempt": "999"}}
    forged["metadata"] |= change
    caches[PODS].put(forged)
    caches[PODS].put(versioned(evaluator(workload())))
    assert [pod["metadata"]["uid"] for pod in (await observed(caches)).pods] == ["uid-of-mcqa-evaluator-1"]
    caches[PODS].remove("forged")
    assert (await observed(caches)).ghosts == ()


async def test_an_event_of_another_namespace_says_nothing_about_a_pod(caches):
    pod = versioned(host(workload()))
    caches[PODS].put(pod)
    for uid, namespace in (("e1", "other"), ("e2", "team")):
        metadata = {"uid": uid, "namespace": namespace, "name": uid, "resourceVersion": "7"}
        about = {"uid": pod["metadata"]["uid"]}
        event = {"metadata": metadata, "involvedObject": about, "reason": uid, "lastTimestamp": "2026-01-01T00:00:00Z"}
        caches[EVENTS].put(event)
    assert [event.reason for event in (await observed(caches)).pod_events] == ["e2"]


RETAINED = {"persistentVolumeClaim": {"size": "1Gi", "retention": "Retain"}}


@pytest.mark.parametrize("results", [RETAINED, {"persistentVolumeClaim": {"size": "1Gi"}}])
async def test_the_jobs_claim_is_found_with_and_without_an_owner(caches, results):
    of = job(results=results, status=accepted_status())
    claim = versioned(live(storage.own_claim(workload(of))))
    caches[CLAIMS].put(claim)
    seen = await Observer(installation(), caches, Inputs()).observe(raw(of), None, None)
    assert seen.claim == claim


@pytest.mark.parametrize("labels", [{"evals.nhx.io/job-uid": "another"}, {"evals.nhx.io/retained": "no"}])
async def test_a_claim_without_an_owner_is_another_jobs_unless_its_labels_say_so(caches, labels):
    of = job(results=RETAINED, status=accepted_status())
    claim = versioned(live(storage.own_claim(workload(of))))
    claim["metadata"]["labels"] |= labels
    caches[CLAIMS].put(claim)
    assert (await Observer(installation(), caches, Inputs()).observe(raw(of), None, None)).claim is None


@pytest.mark.parametrize(("change", "asked"), [({}, False), ({"deletionTimestamp": "2026-11-29T12:00:00Z"}, True)])
async def test_whether_the_namespace_ends_is_asked_once_pods_do(caches, change, asked):
    pod = versioned(evaluator(workload()))
    pod["metadata"] |= change
    caches[PODS].put(pod)
    inputs = Inputs()
    inputs.ends = True
    seen = await Observer(installation(), caches, inputs).observe(raw(job(status=accepted_status())), None, None)
    assert seen.namespace_ends is asked
