"""Whatever happens to a job, and in whatever order the operator hears of it, the job comes to an end.

Random lives in a small world: pods start, end, vanish and are evicted, evaluators are killed and started again in their
pods, a quota refuses pods, watches lag and break, the operator is killed at any of its writes and loses its memory, the
user cancels, suspends and deletes.
"""

import json
import re
from collections import Counter
from datetime import timedelta
from itertools import permutations
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nhx_gym_operator.api.constants import Phase
from nhx_gym_operator.api.waits import without_until
from nhx_gym_operator.api.wire.endpoints import Stage
from nhx_gym_operator.controller import act, podview
from nhx_gym_operator.controller.caches import KINDS
from nhx_gym_operator.controller.clock import parse_time
from nhx_gym_operator.controller.kube import JOBS, PODS, POLICIES
from nhx_gym_operator.controller.policies.phase import phase
from support.controller_values import NOW, TOLD_TO_END, outcome, progress
from support.small_world import NAME, SmallWorld, WriteFault

LOOKS = 12
"""Passes after which nothing may be left to do at one moment. An attempt takes four."""
ROUNDS = 80
HOURS = 3
"""Of the world's clock, within which every job ends once nothing more happens to it: the longest deadline is one hour,
and is that of a quota."""
RESTARTS = 2
"""Of an evaluator in its pod: what an attempt bears, where the job bears as many lost attempts (docs/life-cycle.md)."""
RESTART_SECONDS = 60
"""For one."""
EARLY = outcome("Running", done=3)
"""What an evaluator has said of itself when it is killed."""
OUTCOMES = (
    outcome(),
    outcome(done=7, degraded=["3 rollouts failed"]),
    outcome("Failed", done=0, reason="EvaluationFailed", message="the model refused every call"),
)


class World(SmallWorld):
    """With what must hold at every moment."""

    def __init__(self, job_spec, **changes):
        super().__init__(job_spec, **changes)
        # Reapplying what somebody changes back is bounded by a clock of its own.
        self.clock = patch.object(act, "monotonic", lambda: (self.api.now - NOW).total_seconds())
        self.clock.start()
        self._final = None
        self._highest = 0
        self._lost = 0
        self._losable = set()
        """Attempts of whose evaluator the operator has seen, or could have, something that loses them."""

    @property
    def limit(self):
        return self.job["spec"].get("backoffLimit", 6)

    def kill(self, name, **more):
        super().kill(name, EARLY, **more)

    def vanish(self, name):
        pod = self.api.objects[PODS, name]
        if podview.is_evaluator(pod):
            self._losable.add(podview.attempt(pod))
        super().vanish(name)

    def _is_lost(self, pod):
        """Whether an attempt is lost with an evaluator that looks like this, or may be."""
        return podview.has_ended(pod) or podview.is_terminating(pod) or self._is_worn_out(pod)

    def _is_worn_out(self, pod):
        """Whether it ended more often than an attempt bears, or lies for longer."""
        shown = next(iter(pod.get("status", {}).get("containerStatuses", ())), {"state": {}})
        restarts = shown.get("restartCount", 0)
        if "running" in shown["state"]:
            return restarts > min(RESTARTS, self.limit)
        end = shown["state"].get("terminated") or shown.get("lastState", {}).get("terminated")
        if end is None:
            return False
        lain = (self.api.now - parse_time(end["finishedAt"])).total_seconds()
        return restarts + 1 > min(RESTARTS, self.limit) or lain >= RESTART_SECONDS

    def _note_losable(self):
        for pod in self.operator.caches[PODS].all():
            if podview.is_evaluator(pod) and self.job and self._is_lost(pod):
                self._losable.add(podview.attempt(pod))

    def look(self):
        self._note_losable()
        seen = self.operator.caches[JOBS].get("0f8fad5b-d9cb-469f-a165-70867728950e")
        began = len(self.api.writes)
        again = super().look()
        self.check()
        if seen and "deletionTimestamp" in seen["metadata"]:
            done = self.api.writes[began:]
            assert all(write.startswith("delete Pod") for write in done), f"a job is being deleted: {done}"
        return again

    def settle(self):
        """Passes until nothing is left to do now, and one more, which does nothing. Seconds until the next one."""
        for _ in range(LOOKS):
            before, self.api.fault = len(self.api.writes), None
            self.deliver_all()
            again = self.look()
            if len(self.api.writes) == before and again != 0:
                self.look()
                assert len(self.api.writes) == before, f"in a repeat: {self.api.writes[before:]}"
                self._check_restarts()
                return again
        raise AssertionError(f"it does not settle: {self.api.writes[-20:]}")

    def check(self):
        evaluators = [podview.name(pod) for pod in self.alive() if podview.is_evaluator(pod)]
        assert len(evaluators) <= 1, f"two evaluators: {evaluators}"
        for name in self.started:
            assert self.api.pods_made[name] == 1, f"{name} ran, and was made again"
        status = self.status
        conditions = status.get("conditions", [])
        if not conditions:
            return
        assert status["phase"] == phase(conditions)
        final = [entry for entry in conditions if entry["type"] in ("Complete", "Failed") and entry["status"] == "True"]
        assert len(final) <= 1
        end = (status["phase"], status.get("completionTime"), *((e["type"], e["reason"], e["message"]) for e in final))
        assert self._final is None or end == self._final, f"an end that changes: {self._final}, then {end}"
        if final:
            assert status["phase"] in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED) and status["completionTime"]
            self._final = end
            assert not [entry for entry in conditions if without_until(entry["message"]) != entry["message"]]
        assert status.get("attempt", 0) >= self._highest, "an attempt that goes back"
        assert status.get("lostAttempts", 0) >= self._lost, "a loss that is forgotten"
        self._highest, self._lost = status.get("attempt", 0), status.get("lostAttempts", 0)
        assert self._lost <= self.limit + 1
        assert self._lost <= len(self._losable), f"{self._lost} attempts were lost, and only {self._losable} could be"

    def _check_restarts(self):
        """With everything heard. Whoever is told to end ends, and is started no more."""
        for pod in self.alive():
            if self.job and podview.is_evaluator(pod) and not podview.is_terminating(pod):
                assert not self._is_worn_out(pod), f"{podview.name(pod)} is borne with still: {pod['status']}"

    def later(self, seconds):
        self.api.now += timedelta(seconds=seconds)

    def start(self):
        """All pods that the job gets at once run."""
        self.settle()
        for name in map(podview.name, self.alive()):
            self.bind(name)
            self.run(name)
        self.settle()

    def well_kept(self, last_word):
        """Kubelet and scheduler do what they should, once."""
        for pod in self.pods:
            name = podview.name(pod)
            if podview.is_terminating(pod):
                self.vanish(name)
            elif not pod["spec"].get("nodeName"):
                self.bind(name)
            elif podview.phase(pod) == "Pending":
                self.run(name)
            elif self.is_between_lives(pod):
                if name not in self.stuck:
                    self.start_again(name)
            elif not podview.has_ended(pod) and not podview.is_host(pod):
                self.end(name, last_word)

    def converge(self, last_word):
        """Nothing more goes wrong. The job ends, its pods end, and then nothing is done any more."""
        self.api.fault = None
        began = self.api.now
        for number in range(ROUNDS):
            again = self.settle()
            if self.is_over and not self.alive() and again is None:
                break
            # After some rounds of it, nobody comes by more often than every other minute.
            self.later(max(1.0 if number < 20 else 120.0, again or 5.0))
            self.well_kept(last_word)
        assert self.is_over, f"no end: {self.status}"
        assert not self.alive() and not self.lags()
        assert self.api.now - began < timedelta(hours=HOURS)
        before = len(self.api.writes)
        self.restart()
        self.look()
        assert self.api.writes[before:] == [], "a new operator finds something to do"


class Lives(RuleBasedStateMachine):
    """Each rule is something that may happen next."""

    @initialize(
        mode=st.sampled_from(["Auto", "Disabled"]),
        results=st.sampled_from([{"persistentVolumeClaim": {"size": "1Gi"}}, {"emptyDir": {}}]),
        limit=st.integers(0, 3),
        deadlines=st.sampled_from([{}, {"activeDeadlineSeconds": 900}, {"startingDeadlineSeconds": 120}]),
        held=st.booleans(),
        suspend=st.booleans(),
        restarts=st.sampled_from([True, True, False]),
        runs=st.booleans(),
    )
    def apply(self, mode, results, limit, deadlines, held, suspend, restarts, runs):
        self.world = World(
            {"results": results, "backoffLimit": limit, "suspend": suspend, **deadlines},
            metadata={"finalizers": ["example.com/held"]} if held else None,
            restarts=restarts,
            sandbox={"mode": mode},
        )
        if runs:
            self.world.start()

    # The operator

    @rule(passes=st.integers(1, 3))
    def look(self, passes):
        for _ in range(passes):
            self.world.look()

    @rule(fault=st.sampled_from(WriteFault), good=st.integers(0, 3))
    def look_with_a_fault(self, fault, good):
        """At the first write of a pass, or of one of the next three."""
        for _ in range(good):
            self.world.look()
        self.world.api.fault = fault
        self.world.look()

    @rule()
    def kill_operator(self):
        self.world.restart()

    @rule(kind=st.sampled_from(KINDS))
    def break_watch(self, kind):
        self.world.relist(kind)

    @rule(kind=st.sampled_from(KINDS), events=st.integers(1, 4))
    def deliver(self, kind, events):
        for _ in range(events):
            if kind in self.world.lags():
                self.world.deliver(kind)

    @rule()
    def hear_everything(self):
        self.world.deliver_all()

    @rule(seconds=st.sampled_from([1, 10, 20, 60, 400]))
    def wait(self, seconds):
        self.world.later(seconds)

    # The cluster

    def _pods(self):
        return [podview.name(pod) for pod in self.world.alive()]

    @precondition(lambda self: self._pods())
    @rule(data=st.data(), what=st.sampled_from(["start", "start", "end", "vanish", "evict"]))
    def play_kubelet(self, data, what):
        name = data.draw(st.sampled_from(self._pods()))
        pod = self.world.api.objects[PODS, name]
        if what == "start" and not podview.is_terminating(pod):
            if not pod["spec"].get("nodeName"):
                self.world.bind(name)
            if podview.phase(pod) == "Pending":
                self.world.run(name)
        elif what == "end" and podview.phase(pod) == "Running" and name not in self.world.stuck:
            told = podview.is_terminating(pod)
            words = None if podview.is_host(pod) else data.draw(st.sampled_from([*OUTCOMES, None]))
            self.world.end(name, TOLD_TO_END if told and words else words, code=data.draw(st.sampled_from([0, 1])))
        elif what == "vanish":
            self.world.vanish(name)
        elif what == "evict" and pod["spec"].get("nodeName"):
            self.world.evict(name)

    def _evaluators(self, *, alive):
        """Those in which a process runs, or has just ended."""
        evaluators = [pod for pod in self.world.alive() if podview.is_evaluator(pod)]
        running = [pod for pod in evaluators if podview.phase(pod) == "Running"]
        found = [podview.name(pod) for pod in running if self.world.is_between_lives(pod) is not alive]
        return [name for name in found if name not in self.world.stuck]

    @precondition(lambda self: self._evaluators(alive=True))
    @rule(times=st.sampled_from([1, 1, 2, 3, 4]), backs_off=st.booleans(), heard=st.booleans(), is_stuck=st.booleans())
    def kill_evaluator(self, times, backs_off, heard, is_stuck):
        """Again and again, whether or not the operator hears of what was in between; and then its pod's sandbox too."""
        for number in range(times):
            for name in self._evaluators(alive=False) if number else []:
                self.world.start_again(name)
            for name in self._evaluators(alive=True):
                self.world.kill(name, backs_off=backs_off)
            if heard:
                self.world.deliver_all()
                self.world.look()
        if is_stuck:
            self.world.stuck |= {*self._evaluators(alive=False)}

    @precondition(lambda self: self._evaluators(alive=False))
    @rule()
    def start_evaluator_again(self):
        for name in self._evaluators(alive=False):
            if not podview.is_terminating(self.world.api.objects[PODS, name]):
                self.world.start_again(name)

    @precondition(lambda self: any(podview.has_ended(pod) for pod in self.world.pods))
    @rule(data=st.data())
    def collect_garbage(self, data):
        name = data.draw(st.sampled_from([podview.name(pod) for pod in self.world.pods if podview.has_ended(pod)]))
        self.world.vanish(name)

    @precondition(lambda self: any(podview.phase(pod) == "Running" for pod in self.world.alive()))
    @rule(stage=st.sampled_from([Stage.STARTING, Stage.COLLECTING, Stage.SCORING]), ready=st.integers(0, 1))
    def answer(self, stage, ready):
        attempt = max(podview.attempt(pod) for pod in self.world.pods)
        self.world.progress(progress(stage, attempt=attempt, done=3, hosts_ready=ready))

    @rule(refuses=st.booleans())
    def fill_quota(self, refuses):
        self.world.api.refuses_pods = refuses

    @precondition(lambda self: any(kind not in (JOBS, PODS) for kind, _ in self.world.api.objects))
    @rule(data=st.data())
    def remove_child(self, data):
        others = [key for key in self.world.api.objects if key[0] not in (JOBS, PODS)]
        self.world.api.remove(*data.draw(st.sampled_from(others)))

    # The user

    def _change(self, **fields):
        job = self.world.job
        if job is not None:
            generation = {"generation": job["metadata"]["generation"] + 1}
            self.world.api.change(JOBS, NAME, spec={**job["spec"], **fields}, metadata=generation)

    @rule(suspend=st.booleans())
    def suspend(self, suspend):
        self._change(suspend=suspend)

    @rule(sure=st.integers(0, 3))
    def cancel(self, sure):
        if sure == 3:
            self._change(cancel=True)

    @precondition(lambda self: self.world.job is not None)
    @rule(sure=st.integers(0, 5))
    def delete(self, sure):
        if sure == 5:
            self.world.api.remove(JOBS, NAME)

    # What holds

    @invariant()
    def nothing_is_broken(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if not hasattr(self, "world"):
            return
        try:
            self._come_to_an_end()
        finally:
            self.world.clock.stop()

    def _come_to_an_end(self):
        world, job = self.world, self.world.job
        if job is None or "deletionTimestamp" in job["metadata"]:
            world.deliver_all()
            world.settle()
            world.well_kept(None)
            assert not world.alive()
            return
        self._change(suspend=False)
        world.converge(outcome())
        if world.status["phase"] == "Failed":
            # No end without a word for people.
            assert world.condition("Failed")["message"]


def killed_and_started_again(world):
    """Nothing, if it has ended before."""
    name = "mcqa-evaluator-1"
    if not podview.has_ended(world.api.objects[PODS, name]):
        world.kill(name)
        world.start_again(name)


FACTS = {
    "the evaluator ends": lambda world: world.end("mcqa-evaluator-1", outcome()),
    "the host ends": lambda world: world.end("mcqa-host-0-1", None, code=0),
    "the quota is full": lambda world: setattr(world.api, "refuses_pods", True),
    "somebody removes a policy": lambda world: world.api.remove(POLICIES, "mcqa-host"),
    "the operator is killed": lambda world: world.restart(),
}
AND_AN_ACCIDENT = {**FACTS, "the evaluator is started again": killed_and_started_again}


def end_after(facts, *, heard_at_once):
    """What a job's status says after these, without its times."""
    world = World({})
    try:
        world.start()
        for fact in facts:
            AND_AN_ACCIDENT[fact](world)
            if heard_at_once:
                world.settle()
                world.later(20)
        world.converge(outcome())
        status = json.dumps(world.status)
        return json.loads(re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME", status))
    finally:
        world.clock.stop()


@pytest.mark.parametrize("heard_at_once", [True, False])
def test_the_same_facts_in_any_order_are_the_same_end(heard_at_once):
    """An evaluator that is started again in between makes no other one of it."""
    expected = end_after(FACTS, heard_at_once=heard_at_once)
    assert expected["phase"] == "Succeeded"
    for order in [*permutations(FACTS)][1::20] + [*permutations(AND_AN_ACCIDENT)][::60]:
        assert end_after(order, heard_at_once=heard_at_once) == expected, order


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_an_evaluator_that_is_always_killed_ends_its_job_after_as_many_attempts_as_any_lost_one(limit):
    world, ends = World({"backoffLimit": limit}), Counter()
    try:
        for _ in range(ROUNDS):
            if world.is_over:
                break
            world.later(world.settle() or 1.0)
            for pod in world.alive():
                if podview.is_terminating(pod):
                    world.vanish(podview.name(pod))
                elif podview.phase(pod) == "Pending":
                    world.bind(podview.name(pod))
                    world.run(podview.name(pod))
                elif world.is_between_lives(pod):
                    world.start_again(podview.name(pod))
                elif podview.is_evaluator(pod):
                    world.kill(podview.name(pod))
                    ends[podview.attempt(pod)] += 1
        assert world.is_over and world.condition("Failed")["reason"] == "BackoffLimitExceeded"
        assert (world.status["attempt"], world.status["lostAttempts"]) == (limit + 1, limit + 1)
        assert ends == {attempt: min(RESTARTS, limit) + 1 for attempt in range(1, limit + 2)}
    finally:
        world.clock.stop()


def test_an_evaluator_that_is_not_started_again_is_borne_for_a_minute_and_lost_then_and_its_successor_waits_for_it():
    world = World({})
    try:
        world.start()
        world.kill("mcqa-evaluator-1")
        world.settle()
        world.later(RESTART_SECONDS - 1)
        world.settle()
        assert "lostAttempts" not in world.status
        world.later(1)
        world.settle()
        assert world.status["lostAttempts"] == 1
        # Its pause is over by then, and its pod is not gone.
        world.later(25)
        world.settle()
        assert [podview.name(pod) for pod in world.alive() if podview.is_evaluator(pod)] == ["mcqa-evaluator-1"]
        world.well_kept(None)
        world.settle()
        assert (world.status["attempt"], world.status["lostAttempts"]) == (2, 1)
    finally:
        world.clock.stop()


_UNHURRIED = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True, **_UNHURRIED)


@pytest.mark.nightly
class TestManyLives(Lives.TestCase):
    settings = settings(max_examples=3000, stateful_step_count=80, print_blob=True, **_UNHURRIED)
