"""Plays a plan on the cluster: jobs by and by, faults when their time has come, then a look at what became of all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos import node, world
from chaos.model import Model
from chaos.plan import LOSSES, Fault, Job, Kind, Plan, Where
from chaos.played import Hit, Played, acts_since, may_be_unseen, told_of_restart
from chaos.world import RELEASES, Release, patiently
from chaos.writes import Writes
from nhx_gym_operator.api.constants import CONTAINER_EVALUATE, CONTAINER_HOST
from support import cluster
from support.cluster import Object
from support.job_watch import JobWatch, condition, ended, phase
from support.report import describe

PIECES = "pods,services,endpointslices,secrets,configmaps,persistentvolumeclaims,networkpolicies,serviceaccounts,roles"
DOWN_SECONDS = 3
"""For which the API server stays away."""
RECOVERY_SECONDS = 180
LEFT_SECONDS, LEFT_SECONDS_PER_JOB = 120, 2
"""Until what was a deleted job's is gone: objects by the garbage collector, pods and containers by the kubelet."""
TOLD_SECONDS = 30
WHOLE_SECONDS = 3
"""Between looks at whether there are two operators again."""
_ROLES = {"evaluator": ("evaluator", "colocated"), "host": ("gym-host",)}
_CONTAINERS = {"evaluator": CONTAINER_EVALUATE, "host": CONTAINER_HOST}
_PODS = (Kind.EVALUATOR_POD, Kind.HOST_POD)
_SHIMS = (Kind.EVALUATOR_SHIM, Kind.HOST_SHIM)


class Player:
    def __init__(self, plan: Plan, model: Model) -> None:
        self._plan = plan
        self._model = model
        self._jobs = {job.name: job for job in plan.jobs}
        self._faults = {fault.job: fault for fault in plan.faults}
        self._journals: dict[str, Path] = {}
        self._whole: dict[str, tuple[float, bool]] = {}
        self._cleared: set[str] = set()
        self._began = self._told = time.monotonic()
        self._watch = JobWatch()
        self._writes = Writes()
        self.played = Played(plan)

    def play(self, deadline_seconds: float) -> Played:
        """Returns when all jobs have ended and their objects are gone. Jobs that have not ended when the time is up are
        problems, as is all else that is not as it should be: so there is a report in any case. The time is that of the
        jobs: looking at them and deleting them comes on top."""
        try:
            with self._noted("it broke off"):
                self._set_up()
                self._until_all_ended(self._began + deadline_seconds)
            self.played.seconds = time.monotonic() - self._began
            with self._noted("API writes"):
                self._writes.note()
                self.played.writes = dict(self._writes.by_verb())
            self._recoveries()
            self._tell("looking at what became of all jobs")
            for job in self._plan.jobs:
                if job.name not in self._cleared:
                    self._look_at(job)
            self._tell("deleting all jobs")
            with self._noted("jobs could not be deleted"):
                self._take_down()
        finally:
            self._watch.close()
        self.played.calls = len(self._model.record)
        return self.played

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """An error of any kind is a problem of the report, and what comes next goes on."""
        try:
            yield
        except Exception as error:
            self._note_problem(f"{what}: {type(error).__name__}: {error}")

    # ---- jobs

    def _set_up(self) -> None:
        for where, release in RELEASES.items():
            jobs = [job for job in self._plan.jobs if job.where is where]
            if jobs:
                cluster.apply(*world.inputs(release.jobs, jobs))
        for fault in self._plan.faults:
            if fault.kind is Kind.MODEL:
                self._model.failing[fault.job] = (fault.how, fault.after)
            else:
                self._model.stops[fault.job] = fault.after

    def _until_all_ended(self, deadline: float) -> None:
        waiting, running = list(self._plan.jobs), []
        while waiting or running:
            for job in [job for job in running if self._has_ended(job)]:
                running.remove(job)
                self._note_end(job)
                if self._plan.size.clears:
                    self._clear(job)
            started = self._next(waiting, running)
            if started:
                self._submit(started)
                running += started
            self._inflict_what_is_due()
            if time.monotonic() - self._told > TOLD_SECONDS:
                self._tell(f"{len(running)} jobs run, {len(waiting)} wait")
            if time.monotonic() > deadline:
                names = [job.name for job in running]
                self._note_problem(f"the time is up: {len(waiting)} jobs did not begin, and these did not end: {names}")
                return
            time.sleep(0.2)

    def _next(self, waiting: list[Job], running: list[Job]) -> list[Job]:
        """Takes those that may begin now out of `waiting`."""
        size, started = self._plan.size, []
        real = len([job for job in running if job.where is not Where.LIGHT])
        for job in list(waiting):
            if len(running) + len(started) >= size.at_once:
                break
            if job.where is not Where.LIGHT:
                if real >= size.real_at_once:
                    continue
                real += 1
            waiting.remove(job)
            started.append(job)
        return started

    def _submit(self, jobs: list[Job]) -> None:
        cluster_jobs = [world.manifest(job, self._model.url, _namespace(job)) for job in jobs]
        patiently(lambda: cluster.apply(*cluster_jobs))

    def _last(self, job: Job) -> Object:
        states = self._watch.history(_namespace(job), job.name)
        return states[-1] if states else {}

    def _has_ended(self, job: Job) -> bool:
        return ended(self._last(job))

    def _note_end(self, job: Job) -> None:
        """While its pods and their logs are there to tell why."""
        self.played.phases[job.name] = phase(self._last(job))
        if self.played.phases[job.name] != "Succeeded":
            self._problem(job, f"is {self.played.phases[job.name]}\n{describe(_namespace(job), job.name)}")

    def _clear(self, job: Job) -> None:
        """All that happens to a job has happened by its end: a fault holds its model up until then."""
        self._cleared.add(job.name)
        self._look_at(job)
        with self._noted(f"{job.name} could not be deleted"):
            patiently(lambda: cluster.delete("aej", job.name, _namespace(job), wait=False))

    # ---- progress

    def _tell(self, words: str) -> None:
        self._told = time.monotonic()
        minutes, seconds = divmod(int(self._told - self._began), 60)
        ended, hits = f"{len(self.played.phases)} of {len(self._plan.jobs)} jobs have ended", len(self.played.hits)
        counts = f"{ended}, {hits} of {len(self._plan.faults)} faults, {len(self.played.problems)} problems"
        print(f"{minutes:3}:{seconds:02}  {counts}; {words}", flush=True)

    # ---- faults

    def _inflict_what_is_due(self) -> None:
        for name, fault in list(self._faults.items()):
            if fault.kind is Kind.MODEL:
                del self._faults[name]
                self.played.hits.append(Hit(fault, self._jobs[name], 0.0))
            elif self._model.is_waiting(name) and self._may_inflict(fault):
                del self._faults[name]
                try:
                    self.played.hits.append(self._inflict(fault))
                    self._tell(f"{fault.kind}, of {name}")
                except (AssertionError, LookupError, OSError) as error:
                    self._problem(self._jobs[name], f"{fault.kind}: it could not be done: {error}")
                finally:
                    self._model.release(name)

    def _may_inflict(self, fault: Fault) -> bool:
        """An operator is killed when there is another one to take over. Until then its job waits, and no other does."""
        if fault.kind is not Kind.OPERATOR:
            return True
        release = RELEASES[self._jobs[fault.job].where]
        at, whole = self._whole.get(release.name, (0.0, False))
        if not whole and time.monotonic() - at > WHOLE_SECONDS:
            whole = patiently(release.is_whole)
            self._whole[release.name] = (time.monotonic(), whole)
        return whole

    def _inflict(self, fault: Fault) -> Hit:
        job = self._jobs[fault.job]
        if fault.kind is Kind.API_SERVER:
            self._writes.note()
            hit = Hit(fault, job, time.monotonic())
            node.kill_api_server(DOWN_SECONDS)
            self._writes.restarted()
            hit.over = hit.recovered = time.monotonic()
        elif fault.kind is Kind.OPERATOR:
            hit = self._kill_operator(fault, RELEASES[job.where])
        else:
            hit = self._take_part(fault, job)
        hit.recorded = set(node.read_journal(self._journal(job)).results)
        hit.unfinished = job.rollouts - hit.recorded
        return hit

    def _kill_operator(self, fault: Fault, release: Release) -> Hit:
        """The one that acts; it is over when another one holds the Lease, or itself again."""
        self._whole.pop(release.name, None)
        holder, process = release.leader()
        hit, at = Hit(fault, self._jobs[fault.job], time.monotonic()), time.time()
        node.kill(process)
        node.until_gone(process)
        hit.over, gone = time.monotonic(), time.time()
        while hit.recovered is None and time.monotonic() < hit.at + RECOVERY_SECONDS:
            time.sleep(0.2)
            # By the Lease's own times: on a busy machine it takes kubectl seconds to bring it.
            acts = acts_since(patiently(release.lease), holder, gone)
            hit.recovered = acts and hit.at + acts - at
        return hit

    def _take_part(self, fault: Fault, job: Job) -> Hit:
        part = LOSSES[fault.kind]
        pod = self._pod(job, part)
        process = node.process_of(pod, _CONTAINERS[part])
        target = node.shim_of(process) if fault.kind in _SHIMS else process
        journal = self._journal(job)
        beside, lost = (self._uids_of_pods(job), self._lost(job)) if fault.kind is Kind.EVALUATOR else (set(), 0)
        hit = Hit(fault, job, time.monotonic(), beside=beside, lost=lost)
        if fault.kind in _PODS:
            patiently(lambda: cluster.delete("pod", pod["metadata"]["name"], _namespace(job), wait=False))
        else:
            node.kill(target)
        node.until_gone(process)
        hit.over = time.monotonic()
        assert journal.exists(), f"{job.name} has no journal at {journal}"
        return hit

    def _pod(self, job: Job, part: str) -> Object:
        """Of the part's pods that run, the newest."""
        pods = patiently(lambda: cluster.listed("pods", _namespace(job), {"evals.nhx.io/job-uid": self._uid(job)}))
        roles = _ROLES[part]
        found = [
            pod
            for pod in pods
            if pod["metadata"]["labels"]["evals.nhx.io/role"] in roles
            and pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        assert found, f"{job.name} has no running {part} while its model is being asked"
        return max(found, key=lambda pod: int(pod["metadata"]["labels"]["evals.nhx.io/attempt"]))

    def _uids_of_pods(self, job: Job) -> set[str]:
        pods = patiently(lambda: cluster.listed("pods", _namespace(job), {"evals.nhx.io/job-uid": self._uid(job)}))
        return {pod["metadata"]["uid"] for pod in pods}

    def _lost(self, job: Job) -> int:
        """Attempts so far, as the API server has it now."""
        return patiently(lambda: cluster.get("aej", job.name, _namespace(job)))["status"].get("lostAttempts", 0)

    def _uid(self, job: Job) -> str:
        return self._last(job)["metadata"]["uid"]

    def _journal(self, job: Job) -> Path:
        if job.name not in self._journals:
            name = f"{job.name}-results"
            self._journals[job.name] = patiently(lambda: node.journal_of(_namespace(job), name))
        return self._journals[job.name]

    def _recoveries(self) -> None:
        """When jobs went on, by the calls of their models."""
        for hit in self.played.hits:
            job = self._jobs[hit.fault.job]
            if hit.fault.kind is Kind.MODEL:
                hit.at = min((when for name, _, when in self._model.failed if name == job.name), default=hit.at)
                later = [c.answered for c in self._model.calls_of(job.name) if c.answered and c.answered > hit.at]
                hit.recovered = min(later, default=None) if hit.at else None
            elif hit.fault.kind in LOSSES:
                later = [call.at for call in self._model.calls_of(job.name, since=hit.over)]
                hit.recovered = min(later, default=None)

    # ---- promises

    def _look_at(self, job: Job) -> None:
        with self._noted(f"{job.name} could not be looked at"):
            self._check(job)

    def _check(self, job: Job) -> None:
        if self.played.phases.get(job.name) != "Succeeded":
            if job.name not in self.played.phases and (state := self._last(job)):
                self._problem(job, f"is {phase(state)}\n{describe(_namespace(job), job.name)}")
            return
        status = self._last(job)["status"]
        self._check_aggregates(job, status)
        recorded = node.read_journal(self._journal(job)).results
        self.played.rollouts += len(recorded)
        if len(recorded) != len(set(recorded)):
            self._problem(job, f"recorded rollouts twice: {recorded}")
        if set(recorded) != job.rollouts:
            self._problem(job, f"recorded {sorted(recorded)}, and should have {sorted(job.rollouts)}")
        for hit in [hit for hit in self.played.hits if hit.job is job]:
            if hit.fault.kind is Kind.MODEL:
                self._check_failed(job, hit)
            else:
                self._check_collected(job, hit)
            if hit.fault.kind is Kind.EVALUATOR:
                self._check_restarted(job, hit, status)
        self._check_calls(job)

    def _check_aggregates(self, job: Job, status: Object) -> None:
        found = {entry["name"]: entry for entry in status.get("aggregates") or []}
        reward = found.get("gym_reward.reward", {})
        if reward.get("count") != len(job.rollouts) or abs(reward.get("value", -1) - job.reward) > 1e-9:
            self._problem(job, f"has the reward {reward}, and {job.reward} over {len(job.rollouts)} is right")
        accuracy = found.get("runner.gym.pass@1/accuracy", {}).get("value", -1)
        if abs(accuracy - 100 * job.reward) > 1e-6:
            self._problem(job, f"has Gym's accuracy {accuracy}, and {100 * job.reward} is right")

    def _check_collected(self, job: Job, hit: Hit) -> None:
        """What was unfinished when something died was collected from then on, and nothing else."""
        asked = {call.rollout for call in self._model.calls_of(job.name, since=hit.over) if call.rollout}
        if asked & hit.recorded:
            self._problem(job, f"{hit.fault.kind}: recorded already, and asked again: {sorted(asked & hit.recorded)}")
        if not hit.is_counted:
            return
        hit.collected = asked
        if hit.collected != hit.unfinished:
            words = f"{sorted(hit.unfinished)} were unfinished, and {sorted(hit.collected)} were collected"
            self._problem(job, f"{hit.fault.kind}: {words}")

    def _check_failed(self, job: Job, hit: Hit) -> None:
        """The model failed as often as it was to. With Gym itself repeats of a row cannot be told apart."""
        failed = len([name for name, _, _ in self._model.failed if name == job.name])
        if job.where is Where.LIGHT and failed != hit.fault.after:
            self._problem(job, f"{hit.fault.kind}: calls of {failed} rollouts failed, not of {hit.fault.after}")

    def _check_restarted(self, job: Job, hit: Hit, status: Object) -> None:
        """A killed evaluator's container is started again in its pod, and its hosts go on; the status says so."""
        states = self._watch.history(_namespace(job), job.name)
        lost = status.get("lostAttempts", 0) - hit.lost
        if self._uids_of_pods(job) != hit.beside or lost:
            said = "; ".join(dict.fromkeys(condition(state, "Running").get("message", "") for state in states))
            self._problem(job, f"{hit.fault.kind}: that cost {lost} attempts, or a pod. The status said: {said}")
        if not told_of_restart(states) and not may_be_unseen(hit, self.played.hits):
            self._problem(job, f"{hit.fault.kind}: the status did not say that it was started again")

    def _check_calls(self, job: Job) -> None:
        """Where nothing of the job itself died, each rollout was paid for once."""
        fault = next((hit.fault for hit in self.played.hits if hit.fault.job == job.name), None)
        if job.where is not Where.LIGHT or (fault and (fault.kind in LOSSES or fault.how == "reset")):
            return
        answered = [call.rollout for call in self._model.calls_of(job.name) if call.answered]
        if sorted(answered) != sorted(job.rollouts):
            self._problem(job, f"the model answered for {sorted(answered)}, and should have once for each")

    def _take_down(self) -> None:
        """All jobs are deleted; what is left then is a leak."""
        seconds = LEFT_SECONDS + LEFT_SECONDS_PER_JOB * len(self._plan.jobs)
        for release in {RELEASES[job.where].name: RELEASES[job.where] for job in self._plan.jobs}.values():
            cluster.kubectl("delete", "aej", "--all", f"--namespace={release.jobs}", timeout=seconds)
            left = _left(release.jobs, seconds)
            if left:
                self._note_problem(f"objects of deleted jobs in {release.jobs}: {left}")
        self._tell("waiting until their processes are gone")
        deadline = time.monotonic() + seconds
        while (leaked := node.leaked()) and time.monotonic() < deadline:
            time.sleep(2)
        for words in leaked:
            self._note_problem(words)

    def _problem(self, job: Job, words: str) -> None:
        self._note_problem(f"{job.name} ({job.where}): {words}")

    def _note_problem(self, words: str) -> None:
        self.played.problems.append(words)
        self._tell(f"PROBLEM: {words.partition(chr(10))[0]}")


def _namespace(job: Job) -> str:
    return RELEASES[job.where].jobs


def _left(namespace: str, seconds: float) -> list[str]:
    """What jobs have left there after so long, volumes of their claims included."""
    deadline = time.monotonic() + seconds
    while True:
        entries = [
            entry
            for entry in cluster.listed(PIECES, namespace)
            if "evals.nhx.io/job-uid" in (entry["metadata"].get("labels") or {})
        ]
        entries += [
            volume
            for volume in cluster.listed("persistentvolumes")
            if volume["spec"].get("claimRef", {}).get("namespace") == namespace
        ]
        found = [f"{entry['kind']}/{entry['metadata']['name']}" for entry in entries]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(1)
