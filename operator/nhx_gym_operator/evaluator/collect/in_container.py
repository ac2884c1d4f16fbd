"""Rollouts by Gym's own two-step flow in this container: `gym env start`, then `gym eval run --no-serve`.

How NeMo Gym 0.5.0 is used (`nemo_gym/rollout_collection.py`):
- `--resume` with an output file and its `…_materialized_inputs.jsonl` runs exactly the inputs that the
  output lacks, and aggregates over all. So we write both, and every run, the first one too, resumes.
- One failed rollout ends the command (exit code 1) and with it the rollouts in flight. Those recorded
  stay in the output; the next run gets all that is missing but the failed one.
- Which one failed, and why, it prints only with `global_aiohttp_client_request_debug` in the servers'
  configuration, which it takes over from them: `Response content: …` from `raise_for_status`, then
  `[rollout_collection] /run failed status=… row={…}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from nhx_evals_sdk.agent_eval.runtimes.gym.config import (
    HYDRA_SUBDIR,
    GymRuntimeConfig,
    model_call_capture_dir,
    selection_args,
)
from nhx_evals_sdk.agent_eval.runtimes.gym.process import VALIDATE_TIMEOUT_S, pending_servers
from nhx_evals_sdk.agent_eval.runtimes.gym.results import capture_filename

from ...api.conditions import RunReason, SandboxReason
from ...api.waits import until
from ...api.wire.reports import FailureClass
from ...in_pods.masking import Mask
from .. import gym_files
from ..errors import JobFailed, gym_not_started
from ..gateway import LOCAL_CALLER
from ..gym_files import write_rows
from ..gym_logs import ENV_LOG, EVAL_LOGS, VALIDATE_LOG, GymEnd, last_lines
from ..gym_process import GymProcess, find_gym, own_run_dir
from ..memory import json_values
from ..progress import ProgressState, utc
from ..rollout_calls import RolloutCalls
from ..rollouts import BESIDE_GYMS, MAX_FAILURE_MESSAGE, MODEL_CALLS, Failure, Rollout, RolloutKey, innermost
from .answers import ROLLOUT
from .growing_rows import GrowingRows, key_of
from .protocol import AGGREGATE_TIMEOUT_S, AggregatesMissing, Record

POLL_S = 0.25
RUNS_WITHOUT_A_ROW = 3
"""After so many runs in a row that recorded nothing, what is still missing is given up."""
CLIENT_GRACE_S = 5.0
"""For `gym eval run`, which only talks to the servers: theirs is the job's grace."""

_READY = re.compile(r"All \d+ / \d+ servers ready")
_CONTENT = "Response content: "
_FAILED_ROW = re.compile(r"\[rollout_collection\] /run failed status=(\S+) row=(\{.*\})")

log = logging.getLogger(__name__)


class InContainer:
    """A `Collector` that runs Gym beside itself. Files go to `directory`, the bundle's `gym_run`.
    Gym has the variables of `environment`, and no others."""

    def __init__(
        self,
        config: GymRuntimeConfig,
        directory: Path,
        environment: dict[str, str],
        calls: RolloutCalls,
        mask: Mask,
        progress: ProgressState,
    ) -> None:
        self._config = config
        self._directory = directory
        self._environment = environment
        self._mask = mask
        self._calls = calls
        self._progress = progress
        self._gym = ""
        self._servers: GymProcess | None = None
        self._aggregated: set[RolloutKey] | None = None
        self._runs = 0
        self._last_run: GymProcess | None = None
        self._killed = 0

    async def __aenter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._gym = find_gym()
        selection = self._selection()
        await self._validate(selection)
        log_file = self._directory / ENV_LOG
        self._servers = await self._start(["env", "start", *selection], stdout=log_file)
        try:
            await self._until_ready(self._servers, log_file)
        except BaseException:
            await self._servers.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._servers is not None:
            self._killed = await self._servers.stop()

    async def ended(self) -> GymEnd:
        files = [self._directory / name for name in (*reversed(EVAL_LOGS), ENV_LOG)]
        file = next((file for file in files if not self._killed and last_lines(file)), files[-1])
        return GymEnd(file.name, last_lines(file), self._killed)

    async def collect(self, rollouts: Sequence[Rollout], record: Record, is_spent: Callable[[], bool]) -> None:
        missing = {rollout.key: rollout for rollout in rollouts}
        idle_runs = 0
        while missing and not is_spent():
            ended, complete = await self._run_missing(missing, record, is_spent)
            for key in ended:
                missing.pop(key)
            if is_spent():
                return
            idle_runs = 0 if ended else idle_runs + 1
            if idle_runs >= RUNS_WITHOUT_A_ROW or (complete and not ended):
                break
        for rollout in missing.values():
            words = f"`gym eval run` ended without a result for it, {idle_runs} times in a row"
            words = self._last_run.with_log(words) if self._last_run else words
            await record(rollout, Failure(self._class_of_no_result(), words[:MAX_FAILURE_MESSAGE]))

    def _class_of_no_result(self) -> FailureClass:
        """A signal, such as that of a node without memory, is nothing that the environment did."""
        code = self._last_run.returncode if self._last_run else None
        return FailureClass.KILLED if code is not None and code < 0 else FailureClass.ENVIRONMENT

    async def aggregate(
        self, rollouts: Sequence[Rollout], results: Mapping[RolloutKey, Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        file = self._directory / gym_files.AGGREGATE_METRICS
        if self._aggregated != {rollout.key for rollout in rollouts} or not file.exists():
            self._write_inputs(rollouts)
            write_rows(self._output, (_without_calls(results[rollout.key]) for rollout in rollouts))
            file.unlink(missing_ok=True)
            await self._aggregate_again()
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AggregatesMissing(f"`gym eval run` wrote no readable {file.name}: {error}") from error

    def _selection(self) -> list[str]:
        try:
            return selection_args(self._config, self._directory)
        except ValueError as error:
            # Hydra's command line has no words for some strings and keys, a sandboxed host takes any.
            message = f"spec.target.gym.hydraParams: {error} (a sandboxed job takes it as it is)"
            raise JobFailed(RunReason.EVALUATION_FAILED, message) from error

    @property
    def _output(self) -> Path:
        return self._directory / gym_files.ROLLOUTS

    def _write_inputs(self, rollouts: Sequence[Rollout]) -> None:
        write_rows(self._directory / gym_files.MATERIALIZED_INPUTS, (rollout.row for rollout in rollouts))

    async def _start(self, arguments: Sequence[str], *, stdout: Path, stderr: Path | None = None) -> GymProcess:
        return await GymProcess.start(
            [self._gym, *arguments],
            self._environment,
            stdout=stdout,
            stderr=stderr,
            mask=self._mask,
            grace_s=self._config.shutdown_grace_s if stderr is None else CLIENT_GRACE_S,
        )

    async def _validate(self, selection: Sequence[str]) -> None:
        report = self._directory / VALIDATE_LOG
        self._waits("Gym checks its configuration", VALIDATE_TIMEOUT_S, "`gym env validate`")
        process = await self._start(["env", "validate", *selection], stdout=report)
        try:
            async with asyncio.timeout(VALIDATE_TIMEOUT_S):
                code = await process.process.wait()
        except TimeoutError as error:
            message = f"`gym env validate` did not finish within {VALIDATE_TIMEOUT_S:.0f} s"
            raise JobFailed(SandboxReason.HOST_STARTUP_FAILED, process.with_log(message)) from error
        finally:
            await process.stop()
        if code != 0:
            words = process.with_log("Gym refuses this configuration (`gym env validate`)")
            raise JobFailed(SandboxReason.HOST_STARTUP_FAILED, words)

    async def _until_ready(self, servers: GymProcess, log_file: Path) -> None:
        limit = self._config.startup_timeout_s
        self._waits("Gym's servers are starting", limit, "spec.target.gym.startupTimeoutSeconds")
        try:
            async with asyncio.timeout(limit):
                while not _READY.search(_text(log_file)):
                    if servers.returncode is not None:
                        words = servers.with_log(f"`gym env start` ended with {servers.returncode}")
                        raise gym_not_started(words)
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            pending = pending_servers(_text(log_file))
            waits = f"; still waiting for {', '.join(pending[2])}" if pending and pending[2] else ""
            message = f"Gym's servers were not ready within {limit:g} s (spec.target.gym.startupTimeoutSeconds){waits}"
            raise JobFailed(SandboxReason.STARTUP_TIMEOUT, servers.with_log(message)) from error
        self._progress.message = ""

    def _waits(self, what: str, limit: float, bound: str) -> None:
        self._progress.message = what + until(utc(time.time() + limit), bound)

    async def _run_missing(
        self, missing: Mapping[RolloutKey, Rollout], record: Record, is_spent: Callable[[], bool]
    ) -> tuple[set[RolloutKey], bool]:
        """One `gym eval run` over what is missing. Returns what it recorded, and whether it ended well. It cannot be
        told to begin no other rollout, so once `is_spent` it is ended, with those that it is at."""
        self._write_inputs(list(missing.values()))
        self._output.write_bytes(b"")
        # Gym appends to captures, and a rollout in flight when a run ended has begun one.
        for rollout in missing.values():
            (model_call_capture_dir(self._directory) / str(capture_filename(rollout.row))).unlink(missing_ok=True)
            self._calls.rollout_began(rollout.key, LOCAL_CALLER)
        failures = self._directory / gym_files.FAILURES
        failures.unlink(missing_ok=True)
        files = [GrowingRows(self._output, ROLLOUT), GrowingRows(failures, ROLLOUT)]
        run = await self._start_eval()
        ended: set[RolloutKey] = set()
        try:
            while True:
                if is_spent():
                    await run.stop()
                over = run.returncode is not None
                rows = {key: row for file in files for key, row in file.added()}
                new = rows.keys() & missing.keys() - ended
                ended |= new
                await asyncio.gather(*(record(missing[key], self._with_calls(rows[key])) for key in new))
                if over:
                    break
                self._check_servers()
                await asyncio.sleep(POLL_S)
        finally:
            await run.stop()
        self._last_run = run
        self._aggregated = set(ended) if run.returncode == 0 else None
        for key, failure in self._failed_rows().items():
            if key in missing and key not in ended:
                ended.add(key)
                await record(missing[key], failure)
        return ended, run.returncode == 0

    async def _start_eval(self) -> GymProcess:
        arguments = [
            *("eval", "run", "--no-serve", "--resume"),
            *("--agent", self._config.agent),
            *("--input", str(self._directory / gym_files.INPUT)),
            *("--output", str(self._output)),
            *("--num-repeats", str(self._config.num_repeats)),
            *("--concurrency", str(self._config.concurrency)),
            own_run_dir(self._directory / HYDRA_SUBDIR),
        ]
        self._runs += 1
        stdout, stderr = (self._directory / name for name in EVAL_LOGS)
        for file in (stdout, stderr):
            if file.exists():
                file.rename(file.with_stem(f"{file.stem}.run-{self._runs - 1}"))
        return await self._start(arguments, stdout=stdout, stderr=stderr)

    async def _aggregate_again(self) -> None:
        run = await self._start_eval()
        try:
            async with asyncio.timeout(AGGREGATE_TIMEOUT_S):
                code = await run.process.wait()
        except TimeoutError as error:
            message = f"`gym eval run` did not compute them within {AGGREGATE_TIMEOUT_S:.0f} s"
            raise AggregatesMissing(message) from error
        finally:
            await run.stop()
        if code != 0:
            raise AggregatesMissing(run.with_log("`gym eval run` could not compute them"))

    def _check_servers(self) -> None:
        if self._servers is not None and self._servers.returncode is not None:
            words = self._servers.with_log(f"Gym's servers ended with {self._servers.returncode} during collection")
            raise JobFailed(SandboxReason.HOST_LOST, words, FailureClass.KILLED)

    def _with_calls(self, row: dict[str, Any] | Failure) -> dict[str, Any] | Failure:
        """The result with the model calls that Gym captured for it, as a gym host would send it: without them where
        they are too many."""
        name = capture_filename(row) if not isinstance(row, Failure) else None
        file = model_call_capture_dir(self._directory) / name if name else None
        if file is None or not file.exists() or file.stat().st_size > ROLLOUT.size:
            return row
        text = file.read_bytes()
        if json_values(text, ROLLOUT.values) > ROLLOUT.values:
            return row
        return {**row, MODEL_CALLS: [json.loads(line) for line in text.split(b"\n")[:-1] if line.strip()]}

    def _failed_rows(self) -> dict[RolloutKey, Failure]:
        """What the last run printed about rollouts that failed."""
        content, failed = "", {}
        for line in _text(self._directory / EVAL_LOGS[0]).splitlines():
            at = line.find(_CONTENT)
            if at >= 0:
                content = line[at + len(_CONTENT) :]
            match = _FAILED_ROW.search(line)
            row = _json(match[2]) if match else None
            if match and row is not None:
                failed[key_of(row)] = self._failure(match[1], content)
                content = ""
        return failed

    def _failure(self, status: str, content: str) -> Failure:
        call = self._calls.behind(content)
        if call is not None:
            return call.failure
        return Failure(FailureClass.ENVIRONMENT, innermost(f"the agent answered HTTP {status}: {content}"))


def _json(text: str) -> dict[str, Any] | None:
    """What Gym printed, or None for a line that its end cut short: such a row is sent again."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _without_calls(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in BESIDE_GYMS}


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
