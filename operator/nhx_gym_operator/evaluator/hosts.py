"""Gym hosts as they register themselves, and what is waited for until they do.

What is relied on of the launcher in the host pod:
it listens, then posts `HostRegistration` with its own job token when it starts (`STARTING`, from where the
startup timeout counts) and again as `READY` or `FAILED`; a launcher that restarts has another `boot_id` and
registers again. One that is ready says so every few seconds, to an evaluator that was started again too.

A job with several hosts goes on as long as one of them takes rollouts or may still come to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from ..api.conditions import SandboxReason
from ..api.wire.endpoints import HOST_HEALTH_PATH, HOST_PORT, HostRegistration, HostState, http_url
from ..api.wire.reports import FailureClass
from .errors import JobFailed, gym_not_started
from .gym_logs import GymEnd, host_log, last_lines, with_log
from .progress import ProgressState, utc

REGISTER_WAIT_S = 900.0
""""Host ready wait | Fixed for Evaluator jobs | 900s" (gym-sandbox-configuration.mdx)."""
PROBE_TIMEOUT_S = 5.0
PROBE_LOST_EVERY_S = 5.0
PROBE_READY_EVERY_S = 15.0
SILENT_S = 30.0
"""Of a host that has not answered for so long the status speaks."""
LOST_MARGIN_S = 60.0
"""For a host to come in a lost one's place, beyond the time that Gym may take to start: until its pod runs."""
_MAX_VERSIONS = 24
_SHOWN = 200

log = logging.getLogger(__name__)


@dataclass
class Host:
    """One host that is ready for rollouts."""

    ordinal: int
    boot_id: str
    url: str
    token: str
    in_flight: int = 0
    doubts: int = 0
    """How many rollouts lost their connection to it, and are finding out whether it is there."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@dataclass
class _Slot:
    """What is known of the host with one ordinal."""

    since: float
    """Start of the current wait, monotonic: of the job, of the launcher, or of the loss."""
    state: HostState | None = None
    boot_id: str = ""
    url: str = ""
    """Where the launcher listens. Empty before it registered, and once another host has that address."""
    host: Host | None = None
    lost: Host | None = None
    """The host that stopped answering. It may answer again, as long as no other came in its place."""
    failure: JobFailed | None = None
    """Why the last launcher gave up, until one is ready in its place."""
    next_probe: float = 0.0
    silent_since: float | None = None
    """Since when a host that takes rollouts has answered nothing; Unix time."""
    killed: int | None = None
    """Set once the host has sent its log: how many of Gym's processes it had to kill."""


@dataclass
class HostRegistry:
    """All hosts of the job, and which of them takes the next rollout. `watch` ends the job once none of them can."""

    tokens: dict[int, str]
    startup_timeout_s: float
    session: aiohttp.ClientSession
    progress: ProgressState
    logs: Path
    """Where hosts' logs are kept while the job runs."""
    concurrency: int = 1
    """Rollouts at once over all hosts."""
    register_wait_s: float = REGISTER_WAIT_S
    port: int | None = HOST_PORT
    """Where hosts listen. None takes each host's word for it, which no sandboxed host may give."""
    versions: dict[str, str] = field(default_factory=dict)
    kernel: str = ""
    trimmed: frozenset[str] = frozenset()
    """Names, as a host gives them, of variables that it took white space from."""
    missed: list[str] = field(default_factory=list)
    """Once no host is needed any more: which took no rollouts at the end, and why."""
    _over: bool = False
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _waiting: deque[asyncio.Future[Host]] = field(default_factory=deque)
    """Rollouts that no host has room for, the oldest first."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _clock_zero: float = 0.0
    """Unix time at which the monotonic clock was 0."""

    def __post_init__(self) -> None:
        now = time.monotonic()
        self._clock_zero = time.time() - now
        self._slots = {ordinal: _Slot(since=now) for ordinal in self.tokens}
        self._say()

    @property
    def share(self) -> int:
        """The most rollouts that one host has at a time. What it was given memory for does not grow when another host
        is lost."""
        return -(-self.concurrency // len(self._slots))

    def register(self, registration: HostRegistration, peer: str) -> None:
        """Take in one registration, which came from the address `peer`. Raises `KeyError` for an ordinal
        that the job does not have."""
        slot = self._slots[registration.ordinal]
        known = slot.boot_id == registration.boot_id and slot.state is registration.state
        # Only ever the connection's own address: at one that a host names, the evaluator would reach in
        # its place, and tell what was journaled to, whatever the sandbox may not reach itself.
        url = http_url(peer, self.port or registration.port)
        if registration.boot_id != slot.boot_id:
            # A pod has one launcher. Code that Gym imports as it starts could say for ever that another has begun.
            if slot.state is not HostState.STARTING or slot.url != url:
                slot.since = time.monotonic()
            slot.boot_id, slot.host, slot.lost, slot.killed = registration.boot_id, None, None, None
            slot.silent_since = None
        slot.state, slot.url = registration.state, url
        self._give_up_address(slot)
        self._remember(registration)
        if registration.state is HostState.FAILED:
            self._fail(slot, registration)
        elif registration.state is HostState.READY and slot.lost is not None:
            # It is there, which does not say that it answers.
            slot.next_probe = 0.0
        elif registration.state is HostState.READY and slot.host is None:
            token = self.tokens[registration.ordinal]
            slot.host = Host(registration.ordinal, registration.boot_id, slot.url, token)
            slot.failure = None
        if not known:
            log.info("host %d is %s", registration.ordinal, registration.state)
        self._say()
        self._hand_out()
        self._changed.set()

    def log_file(self, ordinal: int) -> Path:
        """Where a host's log is, once it has sent it. Raises `KeyError` for an ordinal that the job does not have."""
        if ordinal not in self._slots:
            raise KeyError(ordinal)
        return self.logs / host_log(ordinal)

    def ended(self, ordinal: int, killed: int) -> None:
        """A host has ended, and its log is in."""
        self._slots[ordinal].killed = killed
        log.info("the log of host %d is in; %d processes had to be killed there", ordinal, killed)
        self._changed.set()

    async def all_ended(self, told: Iterable[int], timeout_s: float) -> list[GymEnd]:
        """How the hosts that were `told` to end have ended; without those that do not say so in time."""
        waited_for = [self._slots[ordinal] for ordinal in told]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(slot.killed is None for slot in waited_for):
                    self._changed.clear()
                    await self._changed.wait()
        logs = {ordinal: self.log_file(ordinal) for ordinal, slot in self._slots.items() if slot.killed is not None}
        return [GymEnd(file.name, last_lines(file), self._slots[n].killed or 0) for n, file in logs.items()]

    def ready(self) -> list[Host]:
        """Hosts that take rollouts now."""
        return [slot.host for slot in self._slots.values() if slot.host is not None]

    def starting(self) -> list[Host]:
        """Hosts whose Gym is not ready yet."""
        return [
            Host(ordinal, slot.boot_id, slot.url, self.tokens[ordinal])
            for ordinal, slot in self._slots.items()
            if slot.state is HostState.STARTING and slot.url
        ]

    async def any_ready(self) -> None:
        """Wait for the first host. Does not end by itself: `watch` bounds the wait."""
        while not self.ready():
            self._changed.clear()
            await self._changed.wait()

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncIterator[Host]:
        """A host for one rollout, as soon as there is one: the least busy one of those that have room, a silent one
        last. Who waits longest is served first. Does not end by itself: `watch` bounds the wait."""
        place: asyncio.Future[Host] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._hand_out()
        try:
            yield await place
        finally:
            if place.done() and not place.cancelled():
                place.result().in_flight -= 1
                self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            free = [host for host in self.ready() if host.in_flight < self.share and not host.doubts]
            if not free:
                return
            place = self._waiting.popleft()
            if not place.done():
                host = min(free, key=lambda host: (self._slots[host.ordinal].silent_since is not None, host.in_flight))
                host.in_flight += 1
                place.set_result(host)

    async def is_alive(self, host: Host) -> bool:
        """Whether a host that dropped a connection still answers; if not, it is taken as lost. Until that is known it
        is given nothing else: a dead host, which has nothing in flight, would be the least busy one."""
        host.doubts += 1
        try:
            for _ in range(3):
                if await self._answers(host.url):
                    return True
                await asyncio.sleep(1)
            self._lose(host)
            return False
        finally:
            host.doubts -= 1
            self._hand_out()

    async def watch(self) -> None:
        """Raise `JobFailed` once every host has failed or is overdue. Never returns."""
        while True:
            await asyncio.gather(*(self._look_again(slot) for slot in self._slots.values()))
            await asyncio.gather(*(self._look_after(slot) for slot in self._slots.values()))
            self._say()
            troubles = list(self.troubles().values())
            if len(troubles) == len(self._slots):
                # Why Gym cannot start says more than that a host is away.
                raise next((each for each in troubles if each.reason is SandboxReason.HOST_STARTUP_FAILED), troubles[0])
            await asyncio.sleep(0.2)

    def troubles(self) -> dict[int, JobFailed]:
        """By ordinal, why a host takes no rollouts though it had its time; without those that may still come."""
        found = {ordinal: self._trouble(ordinal, slot) for ordinal, slot in self._slots.items()}
        return {ordinal: trouble for ordinal, trouble in found.items() if trouble is not None}

    async def _look_again(self, slot: _Slot) -> None:
        """Take a lost host back if it answers after all: it registered once and will not again."""
        lost = slot.lost
        if lost is None or lost.url != slot.url or time.monotonic() < slot.next_probe:
            return
        slot.next_probe = time.monotonic() + PROBE_LOST_EVERY_S
        if await self._answers(lost.url) and slot.lost is lost and lost.url == slot.url:
            log.info("host %d answers again", lost.ordinal)
            slot.host, slot.lost = lost, None
            self._say()
            self._hand_out()
            self._changed.set()

    async def _look_after(self, slot: _Slot) -> None:
        """Whether a host that takes rollouts answers at all. One that does not may still end what it has in hand: it is
        lost once its connections fall silent."""
        host, now = slot.host, time.monotonic()
        if host is None or now < slot.next_probe:
            return
        slot.next_probe = now + PROBE_READY_EVERY_S
        asked_at = time.time()
        if await self._answers(host.url):
            slot.silent_since = None
        elif slot.host is host:
            slot.silent_since = slot.silent_since or asked_at
        self._say()

    def _trouble(self, ordinal: int, slot: _Slot) -> JobFailed | None:
        if slot.host is not None or slot.failure is not None:
            return slot.failure
        waited = time.monotonic() - slot.since
        if slot.lost:
            limit = self._patience(slot)
            if waited <= limit:
                return None
            words = f"gym host {ordinal} stopped answering, and none came in its place within {limit:.0f} s"
            return JobFailed(SandboxReason.HOST_LOST, words, FailureClass.KILLED)
        if slot.state is None and waited > self._patience(slot):
            return JobFailed(
                SandboxReason.STARTUP_TIMEOUT,
                f"gym host {ordinal} did not register within {self.register_wait_s:.0f} s;"
                " look at its pod: was it scheduled, did its image come, what does its init container say?",
            )
        if slot.state is HostState.STARTING and waited > self._patience(slot):
            return JobFailed(
                SandboxReason.STARTUP_TIMEOUT,
                f"gym host {ordinal} was not ready {self.startup_timeout_s:g} s after its launcher started"
                " (spec.target.gym.startupTimeoutSeconds); its log says what Gym was doing: kubectl nhx logs",
            )
        return None

    def _give_up_address(self, of: _Slot) -> None:
        """A pod that is gone leaves its address to others. No host is called at one that another has registered from:
        it would be taken for the host that had it, and be told that one's token."""
        for slot in self._slots.values():
            if slot is not of and slot.url == of.url:
                if slot.host is not None:
                    self._lose(slot.host)
                slot.url = ""

    def _lose(self, host: Host) -> None:
        slot = self._slots[host.ordinal]
        if slot.host is host:
            log.warning("host %d no longer answers", host.ordinal)
            slot.host, slot.lost, slot.since, slot.silent_since = None, host, time.monotonic(), None
            self._say()

    def _fail(self, slot: _Slot, registration: HostRegistration) -> None:
        words = with_log(registration.message[:500], host_log(registration.ordinal), registration.output_tail)
        if slot.host is None and slot.lost is None:
            slot.failure = gym_not_started(f"gym host {registration.ordinal} could not start Gym: {words}")
        else:
            lost = f"gym host {registration.ordinal} stopped serving rollouts: {words}"
            slot.failure = JobFailed(SandboxReason.HOST_LOST, lost, FailureClass.KILLED)
        slot.host = slot.lost = None

    async def _answers(self, url: str) -> bool:
        """Asked without a token: another pod may have the address by now."""
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        health = f"{url}{HOST_HEALTH_PATH}"
        try:
            async with self.session.get(health, timeout=timeout, allow_redirects=False) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    def _remember(self, registration: HostRegistration) -> None:
        # A host is not trusted: what it says about itself is bounded, and does nothing to a terminal.
        for name, version in list(registration.versions.items())[: _MAX_VERSIONS - len(self.versions)]:
            self.versions.setdefault(_printable(name)[:64], _printable(version)[:64])
        self.kernel = self.kernel or _printable(registration.kernel)[:200]
        self.trimmed = frozenset(registration.trimmed)

    def close(self) -> None:
        """All rollouts are in: no host is waited for any more."""
        self.missed = [self._missing_words(ordinal) for ordinal in self.troubles()]
        self._over = True
        self._say()

    def _say(self) -> None:
        self.progress.hosts = len(self._slots)
        self.progress.hosts_ready = len(self.ready())
        missing = [ordinal for ordinal, slot in self._slots.items() if slot.host is None]
        words = [self._missing_words(missing[0])] if missing and not self._over else []
        if words and self.progress.hosts_ready:
            words.insert(0, f"{self.progress.hosts_ready} of {self.progress.hosts} gym hosts take rollouts")
        silent = [(n, slot.silent_since) for n, slot in self._slots.items() if slot.host and slot.silent_since]
        if silent and time.time() - silent[0][1] >= SILENT_S:
            words.append(
                f"gym host {silent[0][0]} has not answered since {utc(silent[0][1])}, its connections open still"
            )
        self.progress.message = "; ".join(words)

    def _missing_words(self, ordinal: int) -> str:
        slot = self._slots[ordinal]
        trouble = self._trouble(ordinal, slot)
        if trouble is not None:
            return trouble.message.splitlines()[0][:_SHOWN]
        what = "to answer again" if slot.lost else "to start Gym" if slot.state else "to register"
        words = f"waiting for gym host {ordinal} {what}"
        # While others take rollouts, the job does not end with this wait.
        ends = self._clock_zero + slot.since + self._patience(slot)
        return words if self.progress.hosts_ready else f"{words}, until {utc(ends)} at most"

    def _patience(self, slot: _Slot) -> float:
        """How long the present wait may last, in seconds."""
        if slot.lost:
            return self.startup_timeout_s + LOST_MARGIN_S
        return self.register_wait_s if slot.state is None else self.startup_timeout_s


def _printable(text: str) -> str:
    return "".join(filter(str.isprintable, text))
