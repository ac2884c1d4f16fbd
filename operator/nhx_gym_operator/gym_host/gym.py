"""NeMo Gym inside this process: started by the stock runtime's own bootstrap, driven on its event loop.

`sandboxed_gym.runtime.gym_host_runtime` composes the package, installs its wheels and starts Gym's
servers; that stays its work. Three things it fixes in code are wrong behind a gateway and inside a
sandbox, and are replaced here, each in the one function that holds it (`_adapt`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..api.wire.endpoints import HOST_ANSWER_LIMIT_BYTES
from ..api.wire.mounts import WORK_DIR

_POLL_S = 0.2
_OBJECT_STORE_BYTES = 256 << 20
"""Pages are taken when used. Ray refuses less than 75 MiB."""
_LOOPBACK = "127.0.0.1"
_CLIENT_SETUP_S = 30.0


class Gym:
    """A running Gym. `start` and `stop` block; the other methods may be called from any thread."""

    def __init__(self, agent_instance: str) -> None:
        self._agent = agent_instance
        self._runtime: Any = None
        self._run_helper: Any = None
        self._head: Any = None
        self._rollouts: Any = None
        self._client: Any = None

    def start(self, on_ray: Callable[[], None] = lambda: None) -> None:
        """Start Ray and Gym's servers as the environment variables say. Raises what the bootstrap raises.

        `on_ray` is called when Ray is up: its signal handlers have replaced this process's own by then.
        The calling thread has to live on: Ray's processes are killed when it ends.
        """
        from sandboxed_gym.runtime import gym_host_runtime as runtime

        config = json.loads(os.environ["NHX_GYM_GLOBAL_CONFIG"])
        if not config.get("ray_head_node_address"):
            config["ray_head_node_address"] = _start_ray()
            os.environ["NHX_GYM_GLOBAL_CONFIG"] = json.dumps(config)
        on_ray()
        _adapt(runtime)
        self._runtime = runtime
        self._run_helper, self._head, self._rollouts = runtime.bootstrap_gym_host()
        self._client = self._on_loop(self._connect()).result(timeout=_CLIENT_SETUP_S)

    def submit(self, examples: list[dict[str, Any]]) -> concurrent.futures.Future[list[dict[str, Any]]]:
        """Start rollouts; each example without an `agent_ref` goes to the job's agent instance."""
        from nemo_gym.base_responses_api_model import clear_model_call_captures_for_rollouts

        for example in examples:
            example.setdefault("agent_ref", {"name": self._agent})
        directory = self._runtime.model_call_capture_dir(WORK_DIR)
        # As `gym eval run` does: Gym appends to a capture, and a rollout that is sent again has begun one.
        clear_model_call_captures_for_rollouts(examples, [Path(directory)])
        return self._runtime.submit_rollouts(
            examples,
            self._head,
            self._rollouts,
            capture_dir=directory,
            # Captures share the response with the rollouts they belong to, and are what may be left out.
            capture_budget=self.max_response_bytes // 2,
        )

    def aggregate(self, rows: list[dict[str, Any]]) -> concurrent.futures.Future[dict[str, Any]]:
        """Gym's own aggregates over finished rollouts, computed by the agent server that ran them.

        All rows name one agent in their `agent_ref`; rows without one are the job's agent's. They go to it
        as they are: the evaluator has left out what `gym eval run` leaves out.
        """
        return self._on_loop(self._aggregate(rows))

    def check(self) -> None:
        """Raise if one of Gym's servers has ended."""
        self._run_helper.poll()

    def stop(self) -> None:
        """Gym's own orderly end: interrupt the servers, then Ray."""
        import ray

        if self._run_helper is not None:
            self._run_helper.shutdown()
        ray.shutdown()

    @property
    def rollout_deadline_s(self) -> float:
        """Seconds one request may take: the stock runtime's variable and default."""
        default = self._runtime.Handler.rollout_deadline_s
        return float(os.environ.get(self._runtime.ROLLOUT_DEADLINE_ENV_KEY, "").strip() or default)

    @property
    def heartbeat_s(self) -> float:
        return self._runtime.Handler.heartbeat_interval_s

    @property
    def max_response_bytes(self) -> int:
        return HOST_ANSWER_LIMIT_BYTES

    def _on_loop(self, work: Any) -> concurrent.futures.Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._runtime._ensure_event_loop())

    async def _connect(self) -> Any:
        """One client for all requests.

        Gym's helper asks the head server for the whole configuration before every call, synchronously
        on the loop that all rollouts share; it never changes after the start.
        """
        client = self._rollouts.setup_server_client(self._head)
        object.__setattr__(self._rollouts, "setup_server_client", lambda _head=None: client)
        return client

    async def _aggregate(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        from nemo_gym.server_utils import get_response_json, raise_for_status

        response = await self._client.post(
            server_name=_agent_of(rows) or self._agent,
            url_path="/aggregate_metrics",
            json={"verify_responses": rows},
        )
        await raise_for_status(response)
        return await get_response_json(response)


def _agent_of(rows: list[dict[str, Any]]) -> str | None:
    return next((name for row in rows if (name := (row.get("agent_ref") or {}).get("name"))), None)


def _start_ray() -> str:
    """A Ray head for this container alone; returns its address.

    Gym would start one with a dashboard, which takes seconds and 0.4 GiB. It takes an address from its
    configuration instead, and finds this process connected.
    """
    import ray
    from ray._private import parameter, services

    metrics, agent, environments, listener = _free_ports(4)
    # For a port that it is not told, the raylet waits 15 s, fixed in its code, for its agent to choose one,
    # and then aborts. On a busy node the agent's imports take longer.
    options = {
        "metrics_agent_port": agent,
        "runtime_env_agent_port": environments,
        "dashboard_agent_listen_port": listener,
        # Two processes less: nothing can be scaled in here, and what Ray's workers print is in Ray's own logs.
        "no_monitor": True,
        "include_log_monitor": False,
    }
    _replace(parameter, "RayParams", functools.partial(parameter.RayParams, **options))
    _replace(services, "start_ray_process", _with_listener(services.start_ray_process, listener))
    ray.init(
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        _metrics_export_port=metrics,
    )
    return ray.get_runtime_context().gcs_address


def _with_listener(start: Callable[..., Any], port: int) -> Callable[..., Any]:
    """Ray 2.60 tells this port to the agent, but not to the raylet, which has a flag for it."""

    def start_process(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
        if process_type == "raylet":
            command = [*command, f"--dashboard_agent_listen_port={port}"]
        return start(command, process_type, *args, **kwargs)

    return start_process


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((_LOOPBACK, 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in sockets]


def _adapt(runtime: Any) -> None:
    """Replace what the stock runtime fixes in code and a sandbox needs otherwise.

    The names are private to it: one that is missing means another version, and is an error at once.
    """
    _replace(runtime, "_allocate_head_server_port", _on_loopback(runtime._allocate_head_server_port))
    _replace(runtime, "_preflight_policy_credential", _before_gym_starts)


def _replace(module: Any, name: str, function: Callable[..., Any]) -> None:
    if not hasattr(module, name):
        raise RuntimeError(f"{module.__name__} has no {name}: this image's version is not the one it was built for")
    setattr(module, name, function)


def _on_loopback(allocate: Callable[[dict[str, Any]], int]) -> Callable[[dict[str, Any]], int]:
    """Gym's head server bound to loopback: it serves the whole configuration to whoever asks."""

    def allocate_on_loopback(config: dict[str, Any]) -> int:
        port = allocate(config)
        config["head_server"]["host"] = _LOOPBACK
        return port

    return allocate_on_loopback


def _before_gym_starts(_config: dict[str, Any]) -> None:
    """In place of the credential check, and at its point: search path and wheels are wired, Gym is not imported.

    The check posts a chat completion. Behind the gateway it would test this job's token, count as a
    call of the model, and fail for a model that speaks the Responses API only. What is done instead:
    Gym polls its servers every 3 s, which on average is a tenth of a host's start.
    """
    from nemo_gym.cli import env

    _replace(env, "sleep", lambda seconds: time.sleep(min(seconds, _POLL_S)))
