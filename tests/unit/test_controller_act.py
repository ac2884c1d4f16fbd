"""Acting against a recording API server: idempotent, never on what is not ours, all pods or none."""

import copy

import pytest

from nhx_gym_operator.api.fileset import FileSetSpec
from nhx_gym_operator.controller.act import REAPPLY_SECONDS, ActionRefused, Actor
from nhx_gym_operator.controller.caches import Caches
from nhx_gym_operator.controller.differences import merge_patch
from nhx_gym_operator.controller.kube import JOBS, PODS, ApiError
from nhx_gym_operator.controller.observation import Apply, Create, CreateTogether, DeleteJob, DeletePod
from nhx_gym_operator.workloads import network, pods, secrets, storage
from nhx_gym_operator.workloads.workload import StagedFiles
from support.controller_values import CREATED, UID, host, job, live, workload

QUOTA = ApiError(403, "Forbidden", 'pods "mcqa-host-0-1" is forbidden: exceeded quota: pods')


class Server:
    """Holds objects by name and writes down every call."""

    def __init__(self, *objects, refuse=None):
        self.objects = {obj["metadata"]["name"]: obj for obj in objects}
        self.refuse = refuse or {}
        self.calls = []

    async def get(self, resource, namespace, name):
        self.calls.append(("get", name))
        return self._found(name)

    async def create(self, manifest):
        return self._write("create", manifest)

    async def apply(self, manifest):
        self.objects.pop(manifest["metadata"]["name"], None)
        return self._write("apply", manifest)

    async def delete(self, resource, namespace, name, *, uid, resource_version=None, grace_seconds=None):
        self.calls.append(("delete", name))
        metadata = self._found(name)["metadata"]
        if metadata["uid"] != uid or resource_version not in (None, metadata["resourceVersion"]):
            raise ApiError(409, "Conflict", "a precondition does not match")
        del self.objects[name]

    async def patch_status(self, resource, namespace, name, patch):
        self.calls.append(("status", name))
        return {"kind": "AgentEvalJob", "metadata": {"name": name, "uid": UID, "resourceVersion": "9"}}

    def _found(self, name):
        if name not in self.objects:
            raise ApiError(404, "NotFound", name)
        return self.objects[name]

    def _write(self, verb, manifest):
        name = manifest["metadata"]["name"]
        self.calls.append((verb, name))
        if name in self.refuse:
            raise self.refuse[name]
        if name in self.objects:
            raise ApiError(409, "AlreadyExists", name)
        made = copy.deepcopy(live(manifest))
        self.objects[name] = made
        return made


def acting(server):
    caches = Caches(lambda *_: None)
    return Actor(server, caches), caches


def foreign(manifest):
    obj = copy.deepcopy(live(manifest))
    obj["metadata"]["ownerReferences"] = [{"uid": "somebody-else"}]
    return obj


SERVICE = network.evaluator_service(workload())
PAIR = CreateTogether(tuple(pods.job_pods(workload())))


async def test_pods_are_asked_for_together_and_known_at_once():
    server = Server()
    actor, caches = acting(server)
    await actor.perform(PAIR)
    assert server.calls == [("create", "mcqa-evaluator-1"), ("create", "mcqa-host-0-1")]
    assert len(caches[PODS].owned_by(UID)) == 2


async def test_if_one_pod_is_refused_the_other_is_withdrawn():
    server = Server(refuse={"mcqa-host-0-1": QUOTA})
    actor, caches = acting(server)
    with pytest.raises(ActionRefused, match="exceeded quota"):
        await actor.perform(PAIR)
    assert server.objects == {}
    assert caches[PODS].owned_by(UID) == []


async def test_if_the_last_of_several_hosts_is_refused_all_of_the_job_is_withdrawn():
    server = Server(refuse={"mcqa-host-2-1": QUOTA})
    actor, caches = acting(server)
    with pytest.raises(ActionRefused, match="exceeded quota"):
        await actor.perform(CreateTogether(tuple(pods.job_pods(workload(job(hosts=3))))))
    assert [name for _, name in server.calls if name.startswith("mcqa-host")][:3] == [
        f"mcqa-host-{n}-1" for n in range(3)
    ]
    assert server.objects == {}
    assert caches[PODS].owned_by(UID) == []


async def test_a_cluster_without_image_volumes_is_told_by_name():
    dropped = ApiError(422, "Invalid", "spec.volumes[4]: Required value: must specify a volume type")
    spec = FileSetSpec.model_validate({"source": {"image": {"reference": "reg/env:1"}}})
    pod = pods.evaluator_pod(workload(environment=StagedFiles("mine", "u", 1, spec)))
    with pytest.raises(ActionRefused, match="has no image volumes"):
        await acting(Server(refuse={"mcqa-evaluator-1": dropped}))[0].perform(Create(pod))
    with pytest.raises(ActionRefused) as other:
        await acting(Server(refuse={"mcqa-evaluator-1": dropped}))[0].perform(Create(PAIR.manifests[0]))
    assert "image volumes" not in other.value.message


async def test_a_withdrawn_pod_does_not_come_back_with_a_late_event():
    server = Server(refuse={"mcqa-host-0-1": QUOTA})
    actor, caches = acting(server)
    with pytest.raises(ActionRefused):
        await actor.perform(PAIR)
    caches.handle(PODS, "ADDED", live(pods.evaluator_pod(workload())))
    assert caches[PODS].owned_by(UID) == []


async def test_a_server_that_fails_leaves_no_half_job_either():
    server = Server(refuse={"mcqa-host-0-1": ApiError(500, "", "etcd")})
    actor, _ = acting(server)
    with pytest.raises(ApiError):
        await actor.perform(PAIR)
    assert server.objects == {}


async def test_what_is_there_already_is_as_good_as_made():
    server = Server(*(live(pod) for pod in PAIR.manifests))
    actor, caches = acting(server)
    await actor.perform(PAIR)
    assert len(caches[PODS].owned_by(UID)) == 2


async def test_a_foreign_pod_is_named_and_left_alone():
    pod = pods.host_pod(workload(), 0)
    server = Server(foreign(pod))
    actor, _ = acting(server)
    with pytest.raises(ActionRefused) as refused:
        await actor.perform(PAIR)
    assert refused.value.reason == "ChildNotOurs"
    assert "'mcqa-host-0-1'" in refused.value.message
    assert list(server.objects) == ["mcqa-host-0-1"]


async def test_a_foreign_service_is_not_taken_over():
    server = Server(foreign(SERVICE))
    actor, _ = acting(server)
    with pytest.raises(ActionRefused, match="does not belong to this job"):
        await actor.perform(Apply(SERVICE))
    assert ("apply", "mcqa") not in server.calls


async def test_a_secret_that_is_there_is_neither_read_nor_written():
    secret = secrets.token_secrets(workload())[0]
    server = Server(live(secret))
    actor, _ = acting(server)
    await actor.perform(Create(secret))
    assert [verb for verb, _ in server.calls] == ["create"]


async def test_an_object_that_somebody_changes_back_is_not_fought_over():
    server = Server(live(SERVICE))
    actor, _ = acting(server)
    assert await actor.perform(Apply(SERVICE)) is None
    for _ in range(4):
        left = await actor.perform(Apply(SERVICE))
        assert left is not None and REAPPLY_SECONDS - 1 < left <= REAPPLY_SECONDS
    assert [verb for verb, _ in server.calls].count("apply") == 1


async def test_a_pod_is_deleted_only_if_it_is_that_very_pod():
    pod = live(host(workload()), uid="new")
    server = Server(pod)
    actor, _ = acting(server)
    await actor.perform(DeletePod("team", "mcqa-host-0-1", "old"))
    assert server.objects
    await actor.perform(DeletePod("team", "mcqa-host-0-1", "new"))
    assert not server.objects
    await actor.perform(DeletePod("team", "mcqa-host-0-1", "new"))


async def test_a_job_that_changed_since_it_was_to_be_deleted_stays():
    server = Server({"metadata": {"name": "mcqa", "uid": UID, "resourceVersion": "7"}})
    actor, _ = acting(server)
    with pytest.raises(ApiError):
        await actor.perform(DeleteJob("team", "mcqa", UID, "6"))
    assert server.objects
    await actor.perform(DeleteJob("team", "mcqa", UID, "7"))
    assert not server.objects
    await actor.perform(DeleteJob("team", "mcqa", UID, "7"))


async def test_a_status_that_says_the_same_is_not_written():
    server = Server()
    actor, _ = acting(server)
    status = job(status={"placement": "Sandboxed"}).status.to_dict()
    raw = {
        "kind": "AgentEvalJob",
        "metadata": {"name": "mcqa", "namespace": "team", "resourceVersion": "3"},
        "status": status,
    }
    assert await actor.write_status(raw, copy.deepcopy(status)) is False
    assert server.calls == []
    assert await actor.write_status(raw, {**status, "startTime": CREATED}) is True
    assert server.calls == [("status", "mcqa")]


async def test_a_written_status_is_known_at_once():
    actor, caches = acting(Server())
    raw = {"kind": "AgentEvalJob", "metadata": {"name": "mcqa", "namespace": "team", "resourceVersion": "3"}}
    await actor.write_status(raw, {"phase": "Pending"})
    assert caches[JOBS].get(UID)["metadata"]["resourceVersion"] == "9"


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1, "b": 2}, {"a": 1}, {"b": None}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 3}}, {"a": {"y": 3}}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": None}}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": 0.0}, {"a": 0}, {}),
    ],
)
def test_a_merge_patch_says_what_differs_and_no_more(old, new, patch):
    assert merge_patch(old, new) == patch


RETAINED = storage.own_claim(workload(job(results={"persistentVolumeClaim": {"size": "1Gi", "retention": "Retain"}})))


async def test_a_claim_without_an_owner_is_applied_again_only_if_it_was_made_for_this_job():
    actor, _ = acting(Server(copy.deepcopy(live(RETAINED))))
    await actor.perform(Apply(RETAINED))
    others = copy.deepcopy(live(RETAINED))
    others["metadata"]["labels"] = {}
    actor, _ = acting(Server(others))
    with pytest.raises(ActionRefused, match="does not belong to this job"):
        await actor.perform(Apply(RETAINED))
