"""The stores: newest wins, what is gone stays gone, and a list tells what vanished unseen."""

import asyncio

import pytest

from nhx_gym_operator.controller.caches import BLIND_SECONDS, Caches
from nhx_gym_operator.controller.kube import EVENTS, JOBS, PODS, ApiError
from support.controller_values import UID, host, live, workload

JOB = {"kind": "AgentEvalJob", "metadata": {"name": "mcqa", "namespace": "team", "uid": UID, "resourceVersion": "1"}}


def pod(version, uid="p1", namespace="team"):
    return live(host(workload()), uid=uid, resourceVersion=str(version), namespace=namespace)


class Lists:
    """An API server that knows nothing but lists."""

    def __init__(self, **items):
        self.items = items
        self.during = lambda: None

    async def list(self, resource, namespace, **_):
        answer = self.items.get(resource.plural, [])
        if isinstance(answer, ApiError):
            raise answer
        if resource is PODS:
            self.during()
        return {"items": list(answer)}


@pytest.fixture
def heard():
    return []


@pytest.fixture
def caches(heard):
    return Caches(lambda resource, obj: heard.append((resource.plural, obj["metadata"]["uid"])))


def versions(caches):
    return {uid: int(obj["metadata"]["resourceVersion"]) for uid, obj in _objects(caches).items()}


def _objects(caches):
    return {obj["metadata"]["uid"]: obj for obj in caches[PODS].all()}


def test_an_older_version_never_replaces_a_newer_one(caches, heard):
    caches.handle(PODS, "MODIFIED", pod(7))
    caches.handle(PODS, "MODIFIED", pod(6))
    assert versions(caches) == {"p1": 7}
    assert len(heard) == 1


def test_an_object_that_was_deleted_does_not_come_back_with_a_late_event(caches):
    caches.handle(PODS, "ADDED", pod(5))
    caches.handle(PODS, "DELETED", pod(9))
    caches.handle(PODS, "MODIFIED", pod(8))
    assert versions(caches) == {}


def test_an_object_whose_label_is_given_back_comes_back(caches):
    caches.handle(PODS, "ADDED", pod(5))
    caches.handle(PODS, "DELETED", pod(9))
    caches.handle(PODS, "ADDED", pod(10))
    assert versions(caches) == {"p1": 10}


def test_an_object_that_is_known_to_be_deleted_does_not_come_back_at_all(caches):
    caches.handle(PODS, "ADDED", pod(5))
    caches[PODS].remove("p1")
    caches.handle(PODS, "MODIFIED", pod(8))
    assert versions(caches) == {}


def test_what_is_gone_is_remembered_while_news_of_it_may_be_late_and_not_for_ever(caches, monkeypatch):
    now = 0.0
    monkeypatch.setattr("nhx_gym_operator.controller.caches.monotonic", lambda: now)
    for number in range(1000):
        now = float(number)
        caches.handle(PODS, "ADDED", pod(1, uid=f"p{number}"))
        caches.handle(PODS, "DELETED", pod(2, uid=f"p{number}"))
    for late in (1, 2):
        caches.handle(PODS, "MODIFIED", pod(late, uid="p999"))
        caches.handle(PODS, "MODIFIED", pod(late, uid="p800"))
    assert _objects(caches) == {}
    assert len(caches[PODS]._dead) == 300


def test_a_pod_that_is_labelled_for_another_job_leaves_the_first_one(caches):
    caches.handle(PODS, "ADDED", pod(5))
    stolen = pod(6)
    stolen["metadata"]["labels"] = {"evals.nhx.io/job-uid": "another"}
    caches.handle(PODS, "MODIFIED", stolen)
    assert caches[PODS].owned_by(UID) == []
    caches.handle(PODS, "DELETED", stolen)
    assert caches[PODS].owned_by(UID) == []


def test_an_object_made_anew_under_the_same_name_is_another_one(caches):
    caches.handle(PODS, "ADDED", pod(5, "old"))
    caches.handle(PODS, "ADDED", pod(9, "new"))
    caches.handle(PODS, "DELETED", pod(8, "old"))
    assert caches[PODS].named("team", "mcqa-host-0-1")["metadata"]["uid"] == "new"


def test_children_are_found_by_the_job_they_belong_to(caches):
    caches.handle(PODS, "ADDED", pod(5))
    assert [obj["metadata"]["uid"] for obj in caches[PODS].owned_by(UID)] == ["p1"]
    assert caches[PODS].owned_by("another") == []


def test_events_are_found_by_the_pod_that_they_are_about(caches):
    event = {"metadata": {"uid": "e", "name": "e", "resourceVersion": "1"}, "involvedObject": {"uid": "p1"}}
    caches.handle(EVENTS, "ADDED", event)
    assert caches[EVENTS].owned_by("p1") == [event]


async def test_a_list_drops_what_vanished_while_nobody_was_watching(caches, heard):
    caches.handle(PODS, "ADDED", pod(5, "gone"))
    caches.handle(PODS, "ADDED", pod(6, "there"))
    heard.clear()
    await caches.prime(Lists(pods=[pod(6, "there")]))
    assert versions(caches) == {"there": 6}
    assert heard == [("pods", "gone")]


async def test_what_appears_while_a_list_is_under_way_is_kept(caches):
    api = Lists(pods=[])
    api.during = lambda: caches.handle(PODS, "ADDED", pod(9, "new"))
    await caches.prime(api)
    assert versions(caches) == {"new": 9}


async def test_a_list_of_one_namespace_says_nothing_about_another(heard):
    caches = Caches(lambda *_: None, ["team"])
    caches.handle(PODS, "ADDED", pod(5, "here"))
    caches.handle(PODS, "ADDED", pod(5, "elsewhere", "other"))
    await caches.prime(Lists())
    assert versions(caches) == {"elsewhere": 5}


async def test_a_relist_by_the_watch_is_followed_by_a_list_of_our_own(caches, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.controller.caches.RELIST_DEBOUNCE_SECONDS", 0.01)
    caches.handle(PODS, "ADDED", pod(5, "gone"))
    caches.note_list("Pod")
    verifying = asyncio.create_task(caches.keep_verified(Lists(pods=[pod(6, "there")])))
    await asyncio.sleep(0.1)
    verifying.cancel()
    assert versions(caches) == {"there": 6}


async def test_what_vanished_in_whatever_way_is_found_by_the_clock(caches, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.controller.caches.VERIFY_SECONDS", 0.02)
    caches.handle(PODS, "ADDED", pod(5, "gone"))
    verifying = asyncio.create_task(caches.keep_verified(Lists()))
    await asyncio.sleep(0.15)
    verifying.cancel()
    assert versions(caches) == {}


async def test_a_failed_list_changes_nothing(caches, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.controller.caches.VERIFY_SECONDS", 0.02)
    caches.handle(PODS, "ADDED", pod(5))
    verifying = asyncio.create_task(caches.keep_verified(Lists(pods=ApiError(500, "", "etcd"))))
    await asyncio.sleep(0.1)
    verifying.cancel()
    assert versions(caches) == {"p1": 5}


async def test_the_start_waits_for_an_api_server_that_starts_too(caches, monkeypatch):
    api = Lists(pods=ApiError(429, "TooManyRequests", "storage is (re)initializing"))
    primed = asyncio.create_task(caches.prime(api))
    await asyncio.sleep(0.1)
    assert not primed.done()
    api.items["pods"] = [pod(6)]
    await asyncio.wait_for(primed, 5)
    assert versions(caches) == {"p1": 6}


async def test_the_start_fails_at_once_where_a_right_is_missing(caches):
    with pytest.raises(ApiError, match="forbidden"):
        await caches.prime(Lists(pods=ApiError(403, "Forbidden", "forbidden: list pods")))


def test_pods_that_are_gone_are_remembered_as_they_were_until_their_job_goes(caches):
    caches.handle(JOBS, "ADDED", JOB)
    caches.handle(PODS, "ADDED", pod(5))
    caches.handle(PODS, "DELETED", pod(6))
    assert [ghost["metadata"]["resourceVersion"] for ghost in caches.ghosts(UID)] == ["6"]
    caches.handle(JOBS, "DELETED", JOB)
    caches.forget_job(UID)
    assert caches.ghosts(UID) == []


def test_pods_of_a_job_that_is_gone_are_not_remembered(caches):
    caches.handle(PODS, "ADDED", pod(5))
    caches.handle(PODS, "DELETED", pod(6))
    assert caches.ghosts(UID) == []


async def test_an_operator_that_has_listed_nothing_is_blind(caches):
    assert "agentevaljobs" in caches.blindness()
    await caches.prime(Lists())
    assert caches.blindness() == ""


async def test_it_is_blind_when_a_list_fails_for_long_and_sees_again_when_it_succeeds(caches, monkeypatch):
    now = 0.0
    monkeypatch.setattr("nhx_gym_operator.controller.caches.monotonic", lambda: now)
    api = Lists()
    await caches.prime(api)
    api.items["pods"] = ApiError(500, "InternalError", "etcd is away")
    now = BLIND_SECONDS - 1
    await verified_once(caches, api, monkeypatch)
    assert caches.blindness() == ""
    now += 2
    assert caches.blindness() == "pods were last listed 91 s ago: 500 InternalError: etcd is away"
    api.items["pods"] = []
    await verified_once(caches, api, monkeypatch)
    assert caches.blindness() == ""


async def verified_once(caches, api, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.controller.caches.VERIFY_SECONDS", 0.01)
    verifying = asyncio.create_task(caches.keep_verified(api))
    await asyncio.sleep(0.05)
    verifying.cancel()


async def test_a_list_that_fails_is_asked_for_again_in_pauses_that_grow(caches, monkeypatch):
    module = "nhx_gym_operator.controller.caches"
    monkeypatch.setattr(f"{module}.VERIFY_SECONDS", 0.01)
    monkeypatch.setattr(f"{module}._FAILED_BASE_SECONDS", 0.05)
    api, asked = Lists(pods=ApiError(500, "", "etcd")), []
    real = api.list

    async def counted(resource, namespace, **more):
        if resource is PODS:
            asked.append(resource)
        return await real(resource, namespace, **more)

    api.list = counted
    verifying = asyncio.create_task(caches.keep_verified(api))
    await asyncio.sleep(0.6)
    verifying.cancel()
    assert 2 <= len(asked) <= 5
