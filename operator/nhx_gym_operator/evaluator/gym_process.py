"""Gym's command line as child processes: arguments, environment, logs, and their end."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nhx_evals_sdk.agent_eval.runtimes.gym.config import GymRuntimeConfig, hydra_scalar
from nhx_evals_sdk.agent_eval.runtimes.gym.process import (
    LOG_TAIL_LINES,
    drain_pumps,
    gym_executable,
    gym_invocation_env,
)
from pydantic import ValidationError

from ..api.conditions import RunReason
from ..api.gym_models import TOKEN_ENV, model_settings, search_path
from ..api.wire.endpoints import EVALUATOR_PORT, HOST_LOG_LIMIT_BYTES
from ..api.wire.mounts import BUNDLED_VENVS_DIR
from ..api.wire.plans import EVALUATOR_PLAN_ENV, GymTarget, ModelRoute
from ..in_pods.masking import Mask, by_lines
from ..in_pods.mounted import trimmed_variables
from .errors import JobFailed
from .gym_logs import with_log
from .process_group import end_group

VENV_DIR_ENV = "NEMO_GYM_VENV_DIR"

_LEFT_OUT = (b"Request info: ", b"Request kwargs: ")
"""Lines of Gym's request debugging that hold headers, keys among them, and whole prompts."""
MAX_LINE_BYTES = 1 << 20
"""A line that goes on beyond is taken in pieces: a child that never ends one must not fill the memory."""
_TAIL_LINE_BYTES = 4096

log = logging.getLogger(__name__)


def runtime_config(target: GymTarget, models: Sequence[ModelRoute], port: int = EVALUATOR_PORT) -> GymRuntimeConfig:
    """The SDK's configuration for a Gym in this container, its models being those of our gateway.

    Model settings win over `hydraParams`, since no other way to a model is open, and so does request
    debugging, by which Gym says which rollout failed; the two settings that make it start without a
    package index can be overridden. Raises `JobFailed` if Gym could not take it.
    """
    offline = {"skip_venv_if_present": True, "uv_venv_dir": os.environ.get(VENV_DIR_ENV, BUNDLED_VENVS_DIR)}
    gateway = model_settings(f"http://127.0.0.1:{port}", {route.name: route.model for route in models})
    ours = {"global_aiohttp_client_request_debug": True, **gateway}
    if target.agent_config is None:
        message = "spec.target.gym.agentConfig is missing; only an environment package can declare the agent instead"
        raise JobFailed(RunReason.EVALUATION_FAILED, message)
    try:
        return GymRuntimeConfig(
            agent=target.agent,
            agent_config=target.agent_config,
            resources_server=target.resources_server,
            model_type=target.model_type,
            bind_resources_server=target.bind_resources_server,
            hydra_params={**offline, **target.hydra_params, **ours},
            env_vars=target.env_vars,
            num_repeats=target.num_repeats,
            concurrency=target.concurrency,
            startup_timeout_s=target.startup_timeout_s,
            collection_timeout_s=target.collection_timeout_s,
            shutdown_grace_s=target.shutdown_grace_s,
            reward_key=target.reward_key,
        )
    except ValidationError as error:
        message = f"spec.target.gym does not fit GymRuntimeConfig: {error}"
        raise JobFailed(RunReason.EVALUATION_FAILED, message) from error


def gym_environment(config: GymRuntimeConfig, secrets: Sequence[str], token: str) -> dict[str, str]:
    """Variables for Gym: ours without what is not its business, the job's, and the token. Those that `secrets` names
    come without the white space around them."""
    environment = gym_invocation_env(config)
    environment.pop(EVALUATOR_PLAN_ENV, None)
    environment |= trimmed_variables(environment, secrets)
    return {**environment, TOKEN_ENV: token, "PYTHONPATH": search_path(environment.get("PYTHONPATH", ""))}


def find_gym() -> str:
    """The `gym` on PATH. Raises `JobFailed` if there is none."""
    try:
        return gym_executable()
    except RuntimeError as error:
        raise JobFailed(RunReason.EVALUATION_FAILED, f"this image has no NeMo Gym: {error}") from error


def own_run_dir(directory: Path) -> str:
    """The argument that keeps Hydra's timestamped folders out of the working directory."""
    return f"hydra.run.dir={hydra_scalar(str(directory))}"


def output_mask(target: GymTarget, token: str, environment: Mapping[str, str] = os.environ) -> Mask:
    """What Gym's output must not show: our token, and what came by `envSecrets`."""
    return Mask([token, *by_lines(environment.get(name, "") for name in target.env_secret_names)])


class LogFile:
    """What a child prints, on its way to a file in the bundle: without secrets, and without the lines
    in which Gym repeats whole requests. Of a long output the file has the beginning and the last lines, and says so."""

    def __init__(self, path: Path, mask: Mask, limit_bytes: int = HOST_LOG_LIMIT_BYTES) -> None:
        self.tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self.path = path
        self._mask = mask
        self._limit = limit_bytes
        self._size = 0
        # What may be the beginning of something to be hidden, where a line is cut before its end.
        self._held_back = max(mask.longest, *map(len, _LEFT_OUT)) - 1
        self._leaves_out = False
        """The rest of the line at which the output is."""

    async def follow(self, stream: asyncio.StreamReader | None) -> None:
        """Copy until the stream ends."""
        if stream is None:
            return
        rest = b""
        with self.path.open("wb") as file:
            while chunk := await stream.read(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._write(file, self._kept(line + b"\n"))
                    self._leaves_out = False
                if len(rest) > MAX_LINE_BYTES:
                    rest = self._mask.data(rest)
                    self._write(file, self._kept(rest[: -self._held_back]))
                    rest = rest[-self._held_back :]
                file.flush()
            self._write(file, self._kept(rest))
            if self._size > self._limit:
                note = f"\n... {self._size - self._limit} bytes are left out, but for these last lines:\n"
                file.write((note + "\n".join(self.tail) + "\n").encode())

    def _write(self, file: BinaryIO, kept: bytes) -> None:
        file.write(kept[: max(0, self._limit - self._size)])
        self._size += len(kept)

    def _kept(self, line: bytes) -> bytes:
        self._leaves_out = self._leaves_out or any(start in line for start in _LEFT_OUT)
        if not line or self._leaves_out:
            return b""
        line = self._mask.data(line)
        self.tail.append(line[:_TAIL_LINE_BYTES].decode("utf-8", errors="replace").rstrip())
        return line


@dataclass
class GymProcess:
    """One running `gym` command, in a process group of its own, its output in log files."""

    name: str
    process: asyncio.subprocess.Process
    pumps: list[asyncio.Task[None]]
    logs: list[LogFile]
    grace_s: float

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: Path,
        stderr: Path | None = None,
        mask: Mask,
        grace_s: float,
    ) -> GymProcess:
        """Start `gym` with these arguments. Without `stderr` both streams go to `stdout`, in order."""
        name = f"gym {' '.join(arguments[1:3])}"
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if stderr else asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        logs = [LogFile(stdout, mask)]
        pumps = [asyncio.create_task(logs[0].follow(process.stdout))]
        if stderr:
            logs.append(LogFile(stderr, mask))
            pumps.append(asyncio.create_task(logs[1].follow(process.stderr)))
        log.info("started %s", name)
        return cls(name, process, pumps, logs, grace_s)

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    async def stop(self) -> int:
        """End the whole process group within the grace, and its log pumps with it. Returns how many were killed."""
        killed = await end_group(self.process, self.grace_s)
        await drain_pumps(self.pumps, grace_s=min(self.grace_s, 5.0), what=self.name)
        return killed

    def with_log(self, message: str) -> str:
        """`message` with the log that says most about its end, and that log's last lines."""
        last = next((log for log in reversed(self.logs) if log.tail), self.logs[0])
        return with_log(message, last.path.name, last.tail)
