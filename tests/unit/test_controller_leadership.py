"""Which operator acts: the Lease as two processes see it, each by its own clock."""

import copy

import pytest

from nhx_gym_operator.controller.kube import ApiError, KubeClient
from nhx_gym_operator.controller.leadership import Leadership, LeaseLost
from nhx_gym_operator.controller.settings import LeaseSettings, SettingsError
from support.controller_values import after

SETTINGS = LeaseSettings(name="operator", namespace="operators")


class Server:
    """Holds one Lease, and refuses a write over another version than the stored one."""

    def __init__(self):
        self.lease = None
        self.fails = None
        self.writes = 0

    async def get(self, resource, namespace, name):
        self._may_fail()
        if self.lease is None:
            raise ApiError(404, "NotFound", name)
        return copy.deepcopy(self.lease)

    async def create(self, manifest):
        self._may_fail()
        if self.lease is not None:
            raise ApiError(409, "AlreadyExists", "operator")
        self._store(manifest)

    async def replace(self, manifest):
        self._may_fail()
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        self._store(manifest)

    def _store(self, manifest):
        self.writes += 1
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = str(self.writes)

    def _may_fail(self):
        if self.fails:
            raise self.fails


class Process:
    """One operator, with a clock of its own that starts anywhere and stands until it is moved."""

    def __init__(self, server, name, *, starts_at=0.0, wall=0.0):
        self.clock = starts_at
        self._leadership = Leadership(
            server, SETTINGS, name, monotonic=lambda: self.clock, now=lambda: after(wall + self.clock)
        )
        self.release = self._leadership.release
        self.keep = self._leadership.keep
        self.look = self._leadership._try

    @property
    def holds(self):
        return self._leadership.holds()


@pytest.fixture
def server():
    return Server()


async def test_the_first_one_acts_and_the_second_waits(server):
    first, second = Process(server, "a"), Process(server, "b")
    assert await first.look() and not await second.look()
    assert first.holds and not second.holds
    spec = server.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("a", 12)


async def test_the_holder_stops_acting_before_anybody_else_may_begin(server):
    first, second = Process(server, "a"), Process(server, "b")
    await first.look()
    await second.look()
    first.clock, second.clock = 7.9, 7.9
    assert first.holds and not await second.look()
    first.clock, second.clock = 8.0, 11.9
    assert not first.holds and not await second.look(), "nobody acts in between"
    second.clock = 12.0
    assert await second.look() and second.holds


async def test_a_renewal_is_seen_and_counts_from_then(server):
    first, second = Process(server, "a"), Process(server, "b")
    await first.look()
    await second.look()
    first.clock, second.clock = 6.0, 6.0
    await first.look()
    await second.look()
    second.clock = 17.9
    assert not await second.look()
    second.clock = 18.0
    assert await second.look()


async def test_clocks_that_differ_by_an_hour_do_no_harm(server):
    first, second = Process(server, "a", wall=-3600), Process(server, "b", starts_at=500.0, wall=3600)
    await first.look()
    assert not await second.look()
    second.clock += 11.9
    assert not await second.look()


async def test_of_two_that_find_it_free_one_gets_it(server):
    first, second = Process(server, "a"), Process(server, "b")
    await first.look()
    first.clock = 100.0
    third = Process(server, "c")
    await second.look()
    await third.look()
    second.clock = third.clock = 50.0
    stale = copy.deepcopy(server.lease)
    assert await second.look()
    # The other one read it before that.
    current, server.get = server.get, lambda *_: _answer(stale)
    assert not await third.look()
    server.get = current
    assert (second.holds, third.holds, server.lease["spec"]["holderIdentity"]) == (True, False, "b")


async def _answer(lease):
    return copy.deepcopy(lease)


async def test_a_process_that_comes_back_in_the_same_pod_goes_on_at_once(server):
    await Process(server, "a").look()
    assert await Process(server, "a").look()


async def test_a_lease_that_was_let_go_is_taken_at_once(server):
    first, second = Process(server, "a"), Process(server, "b")
    await first.look()
    await second.look()
    await first.release()
    assert not first.holds and await second.look()
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_what_another_one_holds_is_not_let_go(server):
    first, second = Process(server, "a"), Process(server, "b")
    await first.look()
    await second.release()
    assert server.lease["spec"]["holderIdentity"] == "a"


@pytest.mark.parametrize("error", [ApiError(0, "Unreachable", "no route"), ApiError(500, "", "etcd"), TimeoutError()])
async def test_a_server_that_does_not_answer_takes_nothing_away_before_its_time(server, error):
    first = Process(server, "a")
    await first.look()
    server.fails = error
    first.clock = 5.0
    assert not await first.look() and first.holds
    first.clock = 8.0
    assert not first.holds
    with pytest.raises(LeaseLost):
        await first.keep()


async def test_a_lease_that_somebody_took_is_lost_at_once(server):
    first = Process(server, "a")
    await first.look()
    server.lease["spec"]["holderIdentity"] = "b"
    server.lease["metadata"]["resourceVersion"] = "77"
    assert not await first.look() and not first.holds


async def test_an_operator_without_the_right_says_which_one_it_lacks(server):
    server.fails = ApiError(403, "Forbidden", "leases.coordination.k8s.io is forbidden")
    with pytest.raises(SettingsError, match=r"needs get, create and update of leases.*leaderElection\.enabled"):
        await Process(server, "a").look()


async def test_who_does_not_hold_it_changes_nothing():
    class Configuration:
        host = "http://nowhere.invalid"

    client = object.__new__(KubeClient)
    client._configuration, client._may_write = Configuration(), lambda: False
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        with pytest.raises(ApiError, match="does not hold the Lease"):
            await client._request(method, "/api/v1/pods")


@pytest.mark.parametrize("wrong", [{"renewDeadlineSeconds": 12}, {"retrySeconds": 8}, {"durationSeconds": 8}])
def test_bounds_that_would_let_two_act_are_refused(wrong):
    with pytest.raises(ValueError, match="must be less than"):
        LeaseSettings.model_validate({"name": "a", "namespace": "b", **wrong})


def test_another_operator_takes_over_in_less_than_twenty_seconds():
    assert SETTINGS.duration_seconds + 2 * SETTINGS.retry_seconds < 20
