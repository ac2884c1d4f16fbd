"""The container `gym-host`: from an empty sandbox to a Gym that takes rollouts, and orderly out again.

Order matters here. The evaluator hears STARTING before anything slow happens, since that is what the
startup timeout counts from; and whatever goes wrong after that is told to it, with the output that
explains it, before the process ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import signal
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..api.wire.endpoints import HOST_PORT, HostRegistration, HostState
from ..api.wire.mounts import (
    BUNDLED_SERVERS_FILE,
    BUNDLED_VENVS_DIR,
    ENVIRONMENT_DIR,
    HOST_TOKEN,
    TOKENS_DIR,
    WORK_DIR,
)
from ..api.wire.plans import HostPlan
from ..in_pods.mounted import read_secret, trimmed_variables
from ..in_pods.termination_log import write_termination_message
from . import environment, facts, gym_config, processes, requirements
from .evaluator_client import EvaluatorClient, EvaluatorError
from .gym import Gym
from .output import Kept, Output, secrets_in
from .server import HostServer

WATCH_INTERVAL_S = 0.5
TELL_AGAIN_S = 5.0
"""Between two words of a ready host that it is ready."""
REPORT_DEADLINE_S = 20.0
"""How long a failure is tried to be told before the process ends anyway."""
_STARTUP_SHARE = 0.97
"""The evaluator counts the whole timeout; ending a little before it, the host can still say what Gym was doing."""
_KILL_RESERVE_S = 3.0
"""Part of the grace period kept for ending what did not end by itself."""
_MESSAGE_LIMIT = 2000
_PIPE_S = 0.3
_LOG_DEADLINE_S = 5.0
"""Inside the pod's own margin after the job's grace."""


class StartupError(RuntimeError):
    """The host cannot serve. The message is for the job's user."""


class Launcher:
    """One life of a gym host."""

    def __init__(self, plan: HostPlan, token: str, output: Output, trimmed: Sequence[str] = ()) -> None:
        self._plan = plan
        self._trimmed = list(trimmed)
        self._token = token
        self._output = output
        self._boot_id = uuid.uuid4().hex
        self._evaluator = EvaluatorClient(plan.evaluator_url, token)
        self._gym = Gym(plan.target.agent_instance)
        self._stop = asyncio.Event()
        # A thread of its own, since Ray's processes are killed when the thread that started them ends.
        self._gym_thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="gym")
        self._exit_code = 0
        self._server = HostServer(token, on_shutdown=self._end, mask=output.mask)

    async def run(self) -> int:
        """Serve until told to stop. Returns 0 after `/shutdown`, 143 after SIGTERM, 1 after a failure."""
        self._handle_signals()
        try:
            await self._server.start("0.0.0.0", HOST_PORT)
            await self._until_stopped(self._serve())
        except Exception as error:
            await self._fail(error)
            self._exit_code = 1
        await self._shut_down()
        return self._exit_code

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        self._exit_code = 128 + number
        self._end()

    def _end(self) -> None:
        self._server.ending.set()
        self._stop.set()

    async def _until_stopped(self, work: Any) -> None:
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
        task.cancel()

    async def _serve(self) -> None:
        await self._register(HostState.STARTING)
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._plan.target.startup_timeout_s * _STARTUP_SHARE):
                await self._start_gym()
        except TimeoutError:
            raise StartupError(
                f"Gym was not ready within {self._plan.target.startup_timeout_s:g} s "
                "(spec.target.gym.startupTimeoutSeconds)"
            ) from None
        self._server.gym = self._gym
        await self._register(HostState.READY)
        print(f"gym-host: ready after {time.monotonic() - started:.1f} s", flush=True)
        await self._watch_and_tell()

    async def _start_gym(self) -> None:
        staged = None
        if self._plan.environment:
            staged = await self._stage()
        composition = gym_config.compose(self._plan, install_root=install_root(), environment=staged)
        venvs = Path(gym_config.VENVS_DIR if staged else BUNDLED_VENVS_DIR)
        gym_config.require_runnable(composition, venvs, Path(BUNDLED_SERVERS_FILE))
        os.environ.update(
            gym_config.environment_variables(
                self._plan, json.dumps(composition.config), self._token, environment=staged is not None
            )
        )
        loop = asyncio.get_running_loop()

        def start() -> None:
            self._gym.start(on_ray=lambda: loop.call_soon_threadsafe(self._handle_signals))

        await loop.run_in_executor(self._gym_thread, start)
        self._handle_signals()

    async def _stage(self) -> Path:
        archive = Path(WORK_DIR, "environment.tar")
        digest = await self._evaluator.fetch_environment(archive)
        staged = Path(ENVIRONMENT_DIR)
        await asyncio.to_thread(environment.unpack, archive, staged, digest)
        archive.unlink()
        await asyncio.to_thread(requirements.check, staged)
        environment.link_venvs(
            Path(gym_config.VENVS_DIR), staged, bundled=Path(BUNDLED_VENVS_DIR), python=Path(sysconfig.get_path("data"))
        )
        print(f"gym-host: environment {digest} unpacked", flush=True)
        return staged

    async def _watch(self) -> None:
        """A server of Gym that ends takes the host with it: every later rollout would hang or fail."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            self._gym.check()

    async def _watch_and_tell(self) -> None:
        telling = asyncio.create_task(self._keep_telling())
        try:
            await self._watch()
        finally:
            telling.cancel()

    async def _keep_telling(self) -> None:
        """An evaluator that was started again knows of no host. That one is away for a while is no matter of ours."""
        while True:
            await asyncio.sleep(TELL_AGAIN_S)
            try:
                await self._register(HostState.READY, deadline_s=TELL_AGAIN_S)
            except EvaluatorError as unheard:
                print(f"gym-host: {unheard}", flush=True)

    async def _register(self, state: HostState, message: str = "", *, deadline_s: float | None = None) -> None:
        await self._evaluator.register(
            HostRegistration(
                ordinal=self._plan.ordinal,
                state=state,
                port=HOST_PORT,
                boot_id=self._boot_id,
                message=message,
                output_tail=self._output.tail() if state is HostState.FAILED else [],
                versions=facts.versions(),
                kernel=facts.kernel(),
                trimmed=self._trimmed,
            ),
            deadline_s=deadline_s,
        )

    async def _fail(self, error: Exception) -> None:
        self._server.ending.set()
        # What a dying server printed last is still on its way through the pipe.
        await asyncio.sleep(_PIPE_S)
        kills = facts.out_of_memory_kills()
        message = self._output.mask(failure_message(error, kills))
        self._server.gym, self._server.failure = None, message
        print(f"gym-host: {message}", flush=True)
        write_termination_message(f"gym-host: {message}")
        await self._send_log()
        try:
            await self._register(HostState.FAILED, message, deadline_s=REPORT_DEADLINE_S)
        except EvaluatorError as unheard:
            print(f"gym-host: the failure could not be reported: {unheard}", flush=True)

    async def _shut_down(self) -> None:
        """Everything ended and reaped within the job's grace period."""
        deadline = time.monotonic() + self._plan.target.shutdown_grace_s
        await self._server.stop()
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + _before(deadline, _KILL_RESERVE_S)):
                await in_daemon_thread(self._gym.stop)
        except Exception as error:
            print(f"gym-host: Gym did not end by itself ({type(error).__name__}: {error})", flush=True)
        killed = processes.end_descendants(_before(deadline, _KILL_RESERVE_S / 2))
        print(f"gym-host: stopped{f', {killed} processes had to be killed' if killed else ''}", flush=True)
        if self._server.failure is None:
            await self._send_log(killed)

    async def _send_log(self, killed: int = 0) -> None:
        """Once, at the end, since the evaluator keeps what came last. A host without an evaluator has the pod's log."""
        if self._output.kept is None:
            return
        # What was printed a moment ago is still on its way through the pipe.
        await asyncio.sleep(_PIPE_S)
        try:
            await self._evaluator.send_log(self._output.kept.chunks, killed, deadline_s=_LOG_DEADLINE_S)
        except EvaluatorError as unheard:
            print(f"gym-host: the log could not be handed over: {unheard}", flush=True)


async def in_daemon_thread(function: Callable[[], None]) -> None:
    """Like `asyncio.to_thread`, but a call that never returns does not hold up the end of the process."""
    outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    outcome.set_running_or_notify_cancel()
    threading.Thread(target=call, name=function.__name__, daemon=True).start()
    await asyncio.wrap_future(outcome)


def _before(deadline: float, reserve_s: float) -> float:
    return max(0.0, deadline - reserve_s - time.monotonic())


_OURS = (
    StartupError,
    EvaluatorError,
    environment.UnpackError,
    gym_config.ConfigError,
    requirements.RequirementError,
)


def failure_message(error: Exception, out_of_memory_kills: int) -> str:
    """What the job's status will show: the cause in the error's words, without its type where it is ours."""
    ours = isinstance(error, _OURS)
    text = str(error) if ours else f"Gym could not run: {type(error).__name__}: {error}"
    advice = facts.memory_advice(out_of_memory_kills)
    return f"{advice}: {text}"[:_MESSAGE_LIMIT] if advice else text[:_MESSAGE_LIMIT]


def install_root() -> Path:
    """Where Gym's own `resources_servers/` and so on lie, without importing any of it."""
    return Path(sysconfig.get_path("purelib"))


def main(plan: HostPlan) -> int:
    token = read_secret(Path(TOKENS_DIR, HOST_TOKEN), "the host's token").text
    secrets = [token, *secrets_in(dict(os.environ) | plan.target.env_vars, plan.target.env_secret_names)]
    output = Output(secrets, Kept(Path(WORK_DIR, "gym-host.log")))
    output.install()
    trimmed = trimmed_variables(os.environ, plan.target.env_secret_names)
    os.environ.update(trimmed)
    processes.adopt_orphans()

    async def run() -> int:
        return await Launcher(plan, token, output, list(trimmed)).run()

    code = asyncio.run(run())
    output.close()
    return code
