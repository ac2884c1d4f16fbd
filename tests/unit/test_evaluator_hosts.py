"""What the registry makes of hosts that fall silent, or that say more than they may."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from nhx_gym_operator.api.wire.endpoints import HOST_HEALTH_PATH, HOST_SHUTDOWN_PATH, HostRegistration, HostState
from nhx_gym_operator.evaluator import hosts
from nhx_gym_operator.evaluator.collect.through_hosts import ThroughHosts
from nhx_gym_operator.evaluator.errors import JobFailed
from nhx_gym_operator.evaluator.hosts import HostRegistry
from nhx_gym_operator.evaluator.progress import ProgressState
from nhx_gym_operator.evaluator.rollout_calls import RolloutCalls
from unit.evaluator_fakes import target

ADDRESS = "127.0.0.1"


class FakeHost:
    """Answers `/health`, or not."""

    answers = True
    asked = 0
    tokens: frozenset[str] = frozenset()
    """Those that it was told."""

    async def health(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.tokens |= {request.headers[name] for name in ("Authorization",) if name in request.headers}
        return web.Response(status=200 if self.answers else 503)


@contextlib.asynccontextmanager
async def serving(host: FakeHost) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get(HOST_HEALTH_PATH, host.health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, ADDRESS, 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def registry(
    port: int | None, of: int = 1, concurrency: int = 4, startup_s: float = 30
) -> AsyncIterator[HostRegistry]:
    progress, tokens = ProgressState(attempt=1, total=1), {ordinal: f"token-{ordinal}" for ordinal in range(of)}
    async with aiohttp.ClientSession() as session:
        yield HostRegistry(tokens, startup_s, session, progress, Path(), concurrency, port=port)


def ready(port: int, ordinal: int = 0, state: HostState = HostState.READY, boot_id: str = "b") -> HostRegistration:
    return HostRegistration(ordinal=ordinal, state=state, port=port, boot_id=boot_id, message="no such agent")


def of_three(known: HostRegistry) -> None:
    for ordinal in range(3):
        known.register(ready(8000 + ordinal, ordinal), ADDRESS)


async def take(stack: contextlib.AsyncExitStack, known: HostRegistry, times: int) -> list[int]:
    """Ordinals of the hosts that so many rollouts go to, one after the other."""
    return [(await stack.enter_async_context(known.lent())).ordinal for _ in range(times)]


def waiter(known: HostRegistry) -> asyncio.Task[int]:
    """A rollout that waits for a host, and keeps it."""

    async def wait() -> int:
        async with known.lent() as host:
            found.set_result(host.ordinal)
            await asyncio.sleep(600)
        raise AssertionError

    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(wait())
    found.add_done_callback(lambda _: task.set_name("served"))
    return task


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "PROBE_LOST_EVERY_S", 0.05)


async def test_a_host_that_fell_silent_is_taken_back_when_it_answers_again() -> None:
    fake = FakeHost()
    async with serving(fake) as port, registry(port) as known:
        known.register(ready(port), ADDRESS)
        host = known.ready()[0]
        fake.answers = False
        assert not await known.is_alive(host)
        assert known.ready() == []
        watching = asyncio.create_task(known.watch())
        fake.answers = True
        async with asyncio.timeout(5), known.lent() as taken:
            assert taken is host
        watching.cancel()


async def test_code_that_gym_imports_cannot_have_a_start_begin_again_for_ever() -> None:
    async with registry(80, startup_s=0.3) as known:

        async def begin_again() -> None:
            for number in itertools.count():
                known.register(ready(80, state=HostState.STARTING, boot_id=str(number)), ADDRESS)
                await asyncio.sleep(0.05)

        begun = asyncio.create_task(begin_again())
        with pytest.raises(JobFailed, match=r"not ready 0\.3 s after its launcher started"):
            async with asyncio.timeout(10):
                await known.watch()
        begun.cancel()
        known.register(ready(80, state=HostState.STARTING, boot_id="of another pod"), "127.0.0.2")
        assert known.troubles() == {}, "a pod that came in its place has its whole time"


async def test_a_host_cannot_have_the_evaluator_call_another_port() -> None:
    fake, other = FakeHost(), FakeHost()
    async with serving(fake) as port, serving(other) as foreign, registry(port) as known:
        known.register(ready(foreign), ADDRESS)
        assert known.ready()[0].url == f"http://{ADDRESS}:{port}"
        assert other.asked == 0


async def test_a_host_cannot_have_the_evaluator_call_another_address() -> None:
    elsewhere = ready(80).model_dump() | {"pod_ip": "203.0.113.7"}
    async with registry(80) as known:
        known.register(HostRegistration.model_validate(elsewhere), ADDRESS)
        assert known.ready()[0].url == f"http://{ADDRESS}:80"


async def test_a_host_that_redirects_the_evaluator_leads_it_nowhere() -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 0).start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session, registry(port) as known:
        known.register(ready(port), ADDRESS)
        collector = ThroughHosts(known, session, RolloutCalls(), target())
        assert not await known.is_alive(known.ready()[0])
        known.register(ready(port).model_copy(update={"boot_id": "c"}), ADDRESS)
        await collector.__aexit__()
    await runner.cleanup()
    assert set(seen) == {HOST_HEALTH_PATH, HOST_SHUTDOWN_PATH}


async def test_a_host_that_started_again_has_yet_to_say_that_it_ended() -> None:
    async with registry(None) as live:
        live.register(HostRegistration(ordinal=0, state=HostState.READY, boot_id="first"), ADDRESS)
        live.ended(0, killed=0)
        live.register(HostRegistration(ordinal=0, state=HostState.READY, boot_id="second"), ADDRESS)
        assert await live.all_ended([0], timeout_s=0.05) == []


# Of several hosts


async def test_a_rollout_goes_to_the_least_busy_host() -> None:
    async with registry(None, of=3, concurrency=6) as known, contextlib.AsyncExitStack() as stack:
        of_three(known)
        assert await take(stack, known, 6) == [0, 1, 2, 0, 1, 2]


async def test_no_host_has_more_than_its_share_of_the_concurrency_even_if_it_is_alone() -> None:
    async with registry(None, of=3, concurrency=7) as known, contextlib.AsyncExitStack() as stack:
        known.register(ready(8001, 1), ADDRESS)
        assert await take(stack, known, 3) == [1, 1, 1]
        late = waiter(known)
        await settled()
        assert late.get_name() != "served"
        known.register(ready(8002, 2), ADDRESS)
        await settled()
        assert late.get_name() == "served"
        late.cancel()


async def test_who_waits_longest_gets_the_next_room_and_one_that_gave_up_takes_none() -> None:
    async with registry(None, concurrency=1) as known, contextlib.AsyncExitStack() as stack:
        known.register(ready(8000), ADDRESS)
        inner = await stack.enter_async_context(contextlib.AsyncExitStack())
        await take(inner, known, 1)
        gave_up, second, third = waiter(known), waiter(known), waiter(known)
        await settled()
        gave_up.cancel()
        await inner.aclose()
        await settled()
        assert [each.get_name() == "served" for each in (gave_up, second, third)] == [False, True, False]
        second.cancel()
        await settled()
        assert third.get_name() == "served"
        third.cancel()


async def test_a_host_gets_nothing_while_it_is_found_out_whether_it_is_there() -> None:
    silent, other = FakeHost(), FakeHost()
    silent.answers = False
    async with serving(silent) as port, serving(other) as second, registry(None, of=2) as known:
        known.register(ready(port, 0), ADDRESS)
        known.register(ready(second, 1), ADDRESS)
        doubted = known.ready()[0]
        finding_out = asyncio.create_task(known.is_alive(doubted))
        await settled()
        async with contextlib.AsyncExitStack() as stack:
            assert await take(stack, known, 2) == [1, 1]
            waits = waiter(known)
            await settled()
            assert waits.get_name() != "served"
            silent.answers = True
            assert await finding_out
            await settled()
            assert waits.get_name() == "served"
            waits.cancel()


async def test_a_lost_hosts_address_that_another_host_has_now_is_called_for_that_one_alone() -> None:
    fake = FakeHost()
    async with serving(fake) as port, registry(port, of=2) as known:
        known.register(ready(port, 0), ADDRESS)
        fake.answers = False
        assert not await known.is_alive(known.ready()[0])
        known.register(ready(port, 1, HostState.STARTING), ADDRESS)
        fake.answers = True
        watching = asyncio.create_task(known.watch())
        await asyncio.sleep(0.5)
        watching.cancel()
        assert known.ready() == []
        known.register(ready(port, 1), ADDRESS)
        assert [(host.ordinal, host.token) for host in known.ready()] == [(1, "token-1")]


async def test_two_hosts_at_one_address_are_not_taken_for_each_other() -> None:
    async with registry(8000, of=2) as known:
        known.register(ready(8000, 0), "10.1.0.5")
        known.register(ready(8000, 1), "10.1.0.5")
        assert [host.ordinal for host in known.ready()] == [1]


async def test_whether_a_host_is_there_is_asked_without_its_token() -> None:
    fake = FakeHost()
    async with serving(fake) as port, registry(port) as known:
        known.register(ready(port), ADDRESS)
        assert await known.is_alive(known.ready()[0])
        assert (fake.asked, fake.tokens) == (1, frozenset())


async def watched(known: HostRegistry, seconds: float = 1.0) -> JobFailed | None:
    """Why the hosts are beyond use, if they are within this time."""
    try:
        async with asyncio.timeout(seconds):
            await known.watch()
    except JobFailed as failure:
        return failure
    except TimeoutError:
        return None
    raise AssertionError("watching ended")


async def test_a_host_that_cannot_start_ends_no_job_that_has_others_and_is_named() -> None:
    async with registry(None, of=3) as known:
        known.register(ready(8000, 0), ADDRESS)
        known.register(ready(8001, 1, HostState.FAILED), ADDRESS)
        assert await watched(known) is None
        why = "gym host 1 could not start Gym: no such agent; see gym_run/gym_env.host-1.log"
        assert known.progress.message == f"1 of 3 gym hosts take rollouts; {why}"
        assert (known.progress.hosts_ready, known.progress.hosts) == (1, 3)


async def test_hosts_that_all_failed_end_the_job_with_why_gym_cannot_start() -> None:
    async with registry(None, of=2, startup_s=0.1) as known:
        known.register(ready(8000, 0, HostState.STARTING), ADDRESS)
        known.register(ready(8001, 1, HostState.FAILED), ADDRESS)
        failure = await watched(known)
    assert failure is not None and failure.reason == "HostStartupFailed" and "gym host 1" in failure.message


async def test_a_host_whose_node_was_too_busy_ends_the_attempt_and_not_the_job() -> None:
    async with registry(None) as known:
        words = "Gym could not run: Exception: The current node timed out during startup."
        known.register(ready(8000, 0, HostState.FAILED).model_copy(update={"message": words}), ADDRESS)
        failure = await watched(known)
    assert failure is not None and failure.reason == "EvaluatorLost"
    assert failure.message.startswith("the node was too busy for Gym to start: gym host 0 could not start Gym")


async def test_a_failure_counts_until_another_launcher_is_ready_in_its_place() -> None:
    async with registry(None, of=2) as known:
        known.register(ready(8000, 0, HostState.FAILED), ADDRESS)
        known.register(ready(8000, 0, HostState.STARTING, "again"), ADDRESS)
        known.register(ready(8001, 1, HostState.FAILED), ADDRESS)
        assert await watched(known) is not None
        known.register(ready(8000, 0, HostState.READY, "again"), ADDRESS)
        assert await watched(known) is None


async def test_what_a_host_lacked_is_kept_for_the_end_when_none_is_waited_for_any_more() -> None:
    async with registry(None, of=2) as known:
        known.register(ready(8000, 0), ADDRESS)
        known.register(ready(8001, 1, HostState.FAILED), ADDRESS)
        known.close()
        assert known.progress.message == ""
        assert known.missed == ["gym host 1 could not start Gym: no such agent; see gym_run/gym_env.host-1.log"]


async def test_a_ready_host_that_says_so_again_is_the_same_host_and_one_that_was_lost_has_to_answer_first() -> None:
    async with registry(None) as hosts_of_job:
        ready = HostRegistration(ordinal=0, state=HostState.READY, boot_id="a")
        hosts_of_job.register(ready, ADDRESS)
        (host,) = hosts_of_job.ready()
        hosts_of_job.register(ready, ADDRESS)
        assert hosts_of_job.ready() == [host] and hosts_of_job.ready()[0] is host
        hosts_of_job._lose(host)
        hosts_of_job.register(ready, ADDRESS)
        assert hosts_of_job.ready() == []
