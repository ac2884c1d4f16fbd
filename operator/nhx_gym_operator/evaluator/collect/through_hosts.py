"""Rollouts through gym hosts: one example per request, so that a bad one never costs another.

What is relied on of the launcher in the host pod:
`POST /rollouts/run` with `{"examples": [row]}` is answered as `sandboxed_gym.runtime.gym_host_runtime`
does: 200 at once, white space at least every 15 s while the rollout runs, then `{"results": [result]}` or
`{"error": {"code", "message"}}`. For a failed `/run` of an agent the message must hold the body of that
response (`ClientResponseError.response_content`), not only its status: it names the cause, and it holds
the mark of a failed model call. `POST /aggregate_metrics` with `{"verify_responses": [rows]}` goes to the
agent that the rows' `agent_ref` names; all rows of one request name the same. `POST /shutdown` ends the
host. Every request carries the host's own job token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import aiohttp
from sandboxed_gym.host.models import DEFAULT_ROLLOUT_MAX_ATTEMPTS, DEFAULT_ROLLOUT_TIMEOUT_S

from ...api.wire.endpoints import HOST_AGGREGATE_PATH, HOST_ROLLOUTS_PATH, HOST_SHUTDOWN_PATH
from ...api.wire.plans import GymTarget
from ...api.wire.reports import FailureClass
from ..gym_logs import ENV_LOG, GymEnd
from ..hosts import Host, HostRegistry
from ..rollout_calls import RolloutCalls
from ..rollouts import BESIDE_GYMS, Failure, Rollout, RolloutKey, innermost
from .answers import AGGREGATES, ROLLOUT, Answers, HostError, HostGone, Limit
from .protocol import AGGREGATE_TIMEOUT_S, AggregatesMissing, Record

ROLLOUT_TIMEOUT_S = DEFAULT_ROLLOUT_TIMEOUT_S + 120.0
"""A host abandons a rollout after `DEFAULT_ROLLOUT_TIMEOUT_S` and says so. For one that does not, though its heartbeats
go on, nobody waits."""
SILENCE_S = 120.0
"""Longest wait for a host's next byte: eight of its heartbeats (`_HEARTBEAT_INTERVAL_S` = 15)."""
SHUTDOWN_TIMEOUT_S = 5.0
RECONNECT_DELAY_S = 1.0
LOG_MARGIN_S = 10.0
"""For a host to send its log after the grace in which it ends Gym."""

_HEAVY_KEYS = frozenset({"response", "responses_create_params", "ng_agent_observations", "ng_model_call_capture"})
"""What Gym itself leaves out of an aggregation request (`_call_aggregate_metrics`)."""

log = logging.getLogger(__name__)


class ThroughHosts:
    """A `Collector` that sends rows to the job's registered hosts."""

    def __init__(
        self, registry: HostRegistry, session: aiohttp.ClientSession, calls: RolloutCalls, target: GymTarget
    ) -> None:
        self._registry = registry
        self._session = session
        self._calls = calls
        self._concurrency = target.concurrency
        self._grace_s = target.shutdown_grace_s
        self._told: list[int] = []
        self._answers = Answers()

    async def __aenter__(self) -> Self:
        await self._bounded(self._registry.any_ready())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._registry.close()
        ready, starting = self._registry.ready(), self._registry.starting()
        took = await asyncio.gather(*(self._shut_down(host) for host in (*ready, *starting)))
        # Nobody waits for the log of a Gym that ran nothing.
        self._told = [host.ordinal for host, well in zip(ready, took, strict=False) if well]

    async def ended(self) -> GymEnd:
        ends = await self._registry.all_ended(self._told, self._grace_s + LOG_MARGIN_S)
        if not ends:
            return GymEnd(ENV_LOG)
        worst = max(ends, key=lambda end: end.killed)
        return replace(worst, killed=sum(end.killed for end in ends))

    async def collect(self, rollouts: Sequence[Rollout], record: Record, is_spent: Callable[[], bool]) -> None:
        waiting = iter(rollouts)

        async def work() -> None:
            for rollout in waiting:
                if is_spent():
                    return
                async with contextlib.AsyncExitStack() as held:
                    await record(rollout, await self._run(rollout, held))

        await self._bounded(_all_of([work() for _ in range(min(self._concurrency, len(rollouts)))]))

    async def aggregate(
        self, rollouts: Sequence[Rollout], results: Mapping[RolloutKey, Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        by_agent: dict[str, list[RolloutKey]] = {}
        for rollout in rollouts:
            by_agent.setdefault(rollout.agent, []).append(rollout.key)
        # Agents share the limit, since all their entries are held.
        share = Limit(AGGREGATES.size // len(by_agent), AGGREGATES.values // len(by_agent))
        return [
            await self._aggregate_one(agent, lambda keys=keys: (_lightened(results[key]) for key in keys), share)
            for agent, keys in by_agent.items()
        ]

    async def _bounded(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do the work while the hosts are watched, which raises when they fail or stay away."""
        await _first_of(work, self._registry.watch())

    async def _run(self, rollout: Rollout, held: contextlib.AsyncExitStack) -> Mapping[str, Any] | Failure:
        """One rollout. A host that dies under it costs a try, not the rollout. The result's room is `held`."""
        body = _json({"examples": [rollout.row]})
        for number in range(1, DEFAULT_ROLLOUT_MAX_ATTEMPTS + 1):
            async with self._registry.lent() as host:
                self._calls.rollout_began(rollout.key, host.ordinal)
                try:
                    async with asyncio.timeout(ROLLOUT_TIMEOUT_S) as timer:
                        return _only_result(await self._post(host, HOST_ROLLOUTS_PATH, body, ROLLOUT, held))
                except HostError as error:
                    return self._failure(error)
                except (HostGone, aiohttp.ClientError, OSError) as error:
                    if timer.expired():
                        words = f"gym host {host.ordinal} did not end it within {ROLLOUT_TIMEOUT_S:g} s, nor say why"
                        return Failure(FailureClass.TIMEOUT, words)
                    last = f"{type(error).__name__}: {error}"
                    log.warning("rollout %s: host %d, try %d: %s", tuple(rollout.key), host.ordinal, number, last)
                alive = await self._registry.is_alive(host)
            if alive:
                await asyncio.sleep(RECONNECT_DELAY_S * number)
        return Failure(FailureClass.KILLED, f"the gym host went away under it {number} times; last: {last}")

    def _failure(self, error: HostError) -> Failure:
        call = self._calls.behind(str(error))
        if call is not None:
            return call.failure
        if error.code == "deadline_exceeded":
            return Failure(FailureClass.TIMEOUT, str(error))
        return Failure(FailureClass.ENVIRONMENT, innermost(str(error)))

    async def _aggregate_one(
        self, agent: str, rows: Callable[[], Iterable[dict[str, Any]]], limit: Limit
    ) -> dict[str, Any]:
        """One agent's, from the first host that is there: each of them can compute all."""
        gone = "no gym host is left to compute them"
        for host in self._registry.ready():
            name = f"gym host {host.ordinal}"
            try:
                async with asyncio.timeout(AGGREGATE_TIMEOUT_S), contextlib.AsyncExitStack() as held:
                    body = _verify_responses(rows())
                    metrics = await self._post(host, HOST_AGGREGATE_PATH, body, limit, held, AGGREGATE_TIMEOUT_S)
                    return {**metrics, "agent_ref": {"name": agent}}
            except TimeoutError as error:
                raise AggregatesMissing(f"{name} did not compute them within {AGGREGATE_TIMEOUT_S:g} s") from error
            except HostError as error:
                raise AggregatesMissing(f"{name} could not compute them: {error}"[:500]) from error
            except (HostGone, aiohttp.ClientError, OSError) as error:
                gone = f"{name} could not compute them: {error}"[:500]
                log.warning("aggregates: %s", gone)
        raise AggregatesMissing(gone)

    async def _post(
        self,
        host: Host,
        path: str,
        body: bytes | AsyncIterator[bytes],
        limit: Limit,
        held: contextlib.AsyncExitStack,
        silence_s: float = SILENCE_S,
    ) -> Mapping[str, Any]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_s)
        headers = {**host.headers, "Content-Type": "application/json"}
        async with self._session.post(
            f"{host.url}{path}", data=body, headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            return await self._answers.take(answer, limit, held)

    async def _shut_down(self, host: Host) -> bool:
        """Whether the host took it."""
        timeout = aiohttp.ClientTimeout(total=SHUTDOWN_TIMEOUT_S)
        try:
            # A redirect would be a way out of the sandbox.
            async with self._session.post(
                f"{host.url}{HOST_SHUTDOWN_PATH}", headers=host.headers, timeout=timeout, allow_redirects=False
            ):
                log.info("host %d was told to end", host.ordinal)
                return True
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("host %d did not take the request to end: %s", host.ordinal, type(error).__name__)
            return False


async def _first_of(*work: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancel(tasks)


async def _all_of(work: list[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _only_result(envelope: Mapping[str, Any]) -> Mapping[str, Any]:
    results = envelope.get("results")
    if not (isinstance(results, list) and len(results) == 1 and isinstance(results[0], Mapping)):
        raise HostError("internal", "the gym host's answer to one example does not hold one result")
    return results[0]


async def _verify_responses(rows: Iterable[dict[str, Any]]) -> AsyncIterator[bytes]:
    """The body of an aggregation request, a row at a time: of a large run it would not fit into memory twice."""
    separator = b'{"verify_responses": ['
    for row in rows:
        yield separator + _json(row)
        separator = b", "
    yield b"]}"


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _lightened(result: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: value for key, value in result.items() if key not in _HEAVY_KEYS | BESIDE_GYMS}
    response = result.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    return {**row, "response": {"usage": usage}} if usage else row
