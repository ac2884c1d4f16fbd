"""A model server and a gym host on loopback, as far as the evaluator can see of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.api.wire.endpoints import (
    HOST_LOG_PATH,
    KILLED_HEADER,
    ROLLOUT_HEADER,
    HostRegistration,
    HostState,
)
from nhx_gym_operator.api.wire.plans import EvaluatorPlan, GymTarget, ModelRoute
from nhx_gym_operator.evaluator.plan import Paths, Tokens
from nhx_gym_operator.evaluator.run import Evaluation, Ports

MODEL = "org/Name-3.2"
KEY = "sk-a-real-key"
TOKENS = Tokens(progress="progress-token", hosts={n: f"host-token-{n}" for n in range(4)}, local_gym="local-token")

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def row(number: int) -> dict[str, Any]:
    """A dataset row whose right answer is its number."""
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"question {number}"}]},
        "expected_answer": str(number),
    }


def write_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return file


def chat(text: str, usage: bool = True) -> dict[str, Any]:
    """A chat completion of 100 input and 20 output tokens."""
    answer: dict[str, Any] = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
    }
    if usage:
        answer["usage"] = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return answer


def prompt_of(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass
class FakeModel:
    """Answers a question with its number, wrongly for those in `wrong`; `answer` replaces that."""

    wrong: frozenset[str] = frozenset()
    answer: Answer | None = None
    url: str = ""
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    listing: Answer | None = None
    """What it answers to `GET /v1/models`, in place of an empty list."""
    looks: list[web.Request] = field(default_factory=list)
    """Those requests, which are no calls."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/{path:.*}", self._answer)
        return app

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.looks.append(request)
        if self.listing is not None:
            return await self.listing(request, {})
        return web.json_response({"object": "list", "data": []})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(request)
        self.bodies.append(body)
        if self.answer is not None:
            return await self.answer(request, body)
        number = prompt_of(body).split()[-1]
        return web.json_response(chat("wrong" if number in self.wrong else number))


@dataclass
class FakeHost:
    """A gym host whose agent asks the policy once and whose verifier compares with the row's answer."""

    ordinal: int = 0
    evaluator: str = ""
    url: str = ""
    boot_id: str = "boot-1"
    verify: Callable[[dict[str, Any], str], Any] = lambda row, text: float(text == row["expected_answer"])
    """The reward of a row's answer. May raise: the rollout then fails as it does in Gym."""
    aggregate_fails: bool = False
    swallows: bool = False
    """Its agent takes a failed call for an empty answer, which the verifier then judges."""
    names_rollouts: bool = True
    """Its model server says which rollout a call is of, as `in_gym/sitecustomize.py` makes Gym's do."""
    captures: bool = True
    """Its results hold what the model server answered, as Gym's captures do."""
    uncaptured: set[tuple[int, int]] = field(default_factory=set)
    """Rollouts whose results come without any model call."""
    marks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What else the result of a row holds, by its expected answer."""
    die_on: set[tuple[int, int]] = field(default_factory=set)
    """Rollouts under which the connection breaks, once each."""
    rollouts: list[tuple[int, int]] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    """The rows as they came."""
    delay_s: float = 0.0
    in_flight: int = 0
    most_in_flight: int = 0
    shut_down: bool = False
    healthy: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    """Of its answers, besides their type."""
    log: str = "starting\nUvicorn running\n"
    """What it hands over at its end."""
    killed: int = 0
    says_goodbye: bool = True
    transports: list[asyncio.Transport] = field(default_factory=list)
    """Connections of rollouts that were begun."""

    @property
    def token(self) -> str:
        return TOKENS.hosts[self.ordinal]

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/health", self._health)
        app.router.add_post("/rollouts/run", self._run)
        app.router.add_post("/aggregate_metrics", self._aggregate)
        app.router.add_post("/shutdown", self._shutdown)
        return app

    async def register(self, state: HostState = HostState.READY, **more: Any) -> None:
        registration = HostRegistration(
            ordinal=self.ordinal,
            state=state,
            port=int(self.url.rsplit(":", 1)[1]),
            boot_id=self.boot_id,
            versions={"nemo-gym": "0.5.0"},
            kernel="gVisor",
            **more,
        )
        headers = {"Authorization": f"Bearer {self.token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{self.evaluator}/hosts", json=registration.model_dump(mode="json")) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def send_log(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}", KILLED_HEADER: str(self.killed)}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{self.evaluator}{HOST_LOG_PATH}", data=self.log) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({}, status=200 if self.healthy else 503)

    async def _run(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {self.token}"
        (example,) = (await request.json())["examples"]
        key = (example["_ng_task_index"], example["_ng_rollout_index"])
        self.rollouts.append(key)
        self.examples.append(example)
        assert request.transport is not None
        self.transports.append(request.transport)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        response = web.StreamResponse(headers={"Content-Type": "application/json", **self.headers})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b" ")
        try:
            if key in self.die_on:
                self.die_on.remove(key)
                request.transport.abort()
                return response
            await asyncio.sleep(self.delay_s)
            await response.write(b" " + await self._body(example))
        finally:
            self.in_flight -= 1
        return response

    async def _body(self, example: dict[str, Any]) -> bytes:
        return json.dumps(await self._rollout(example)).encode()

    async def _rollout(self, example: dict[str, Any]) -> dict[str, Any]:
        messages = example["responses_create_params"]["input"]
        headers = {"Authorization": f"Bearer {self.token}"}
        if self.names_rollouts:
            headers[ROLLOUT_HEADER] = f"{example['_ng_task_index']}-{example['_ng_rollout_index']}"
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(
                f"{self.evaluator}/models/policy/v1/chat/completions", json={"model": MODEL, "messages": messages}
            ) as answer,
        ):
            body = await answer.read()
        if answer.status != 200 and not self.swallows:
            inner = f"Hit an exception in SimpleModelServer calling an inner server: {body!r}"
            outer = f"Hit an exception in SimpleAgent calling an inner server: {json.dumps(inner).encode()!r}"
            return {"error": {"code": "internal", "message": f"ClientResponseError: 500\n{outer}"}}
        completion = json.loads(body)
        text = completion["choices"][0]["message"]["content"] if answer.status == 200 else ""
        try:
            reward = self.verify(example, text)
        except Exception as error:
            return {"error": {"code": "internal", "message": repr(error)}}
        result = {
            **example,
            **self.marks.get(example["expected_answer"], {}),
            "reward": reward,
            "response": {
                "output": [{"type": "message", "content": text}],
                "usage": {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120},
            },
        }
        if (example["_ng_task_index"], example["_ng_rollout_index"]) not in self.uncaptured:
            call = {"request": messages, "response_raw": body.decode() if self.captures else text}
            result["_nhx_model_calls"] = [call]
        return {"results": [result]}

    async def _aggregate(self, request: web.Request) -> web.Response:
        if self.aggregate_fails:
            return web.json_response({"error": {"code": "internal", "message": "KeyError: 'x'"}}, status=502)
        rows = (await request.json())["verify_responses"]
        assert all("responses_create_params" not in each and "_nhx_model_calls" not in each for each in rows)
        mean = sum(each["reward"] for each in rows) / len(rows)
        agent_metrics = {"mean/reward": mean, "pass@1/accuracy": 100 * mean, "rows": len(rows)}
        return web.json_response({"agent_metrics": agent_metrics, "key_metrics": {}, "group_level_metrics": []})

    async def _shutdown(self, _: web.Request) -> web.Response:
        self.shut_down = True
        if self.evaluator and self.says_goodbye:
            self._end = asyncio.create_task(self.send_log())
        return web.json_response({})


def paths_in(directory: Path) -> Paths:
    """Paths of an evaluator that lives in a temporary directory, with the policy's key in place."""
    paths = Paths(
        results=directory / "results",
        work=directory / "work",
        source=directory / "source",
        source_secrets=directory / "source-secrets",
        staged_dataset=directory / "dataset" / "dataset.jsonl",
        environment=directory / "environment",
        bundled_datasets=directory / "bundled",
        model_keys=directory / "keys",
        model_certificates=directory / "model-certificates",
        tokens=directory / "tokens",
        object_store=directory / "object-store",
        termination_log=directory / "termination-log",
    )
    key = paths.model_keys / "policy" / "api-key"
    key.parent.mkdir(parents=True, exist_ok=True)
    key.write_text(KEY)
    paths.results.mkdir(exist_ok=True)
    return paths


def bucket_keys(directory: Path, key_id: str, secret: str) -> Path:
    """The directory of a bucket's credentials, as a pod finds it."""
    keys = directory / "object-store"
    for name, text in (("access-key-id", key_id), ("secret-access-key", secret)):
        (keys / name).mkdir(parents=True, exist_ok=True)
        (keys / name / "value").write_text(text)
    return keys


def route(url: str = "http://127.0.0.1:9/v1", **more: Any) -> ModelRoute:
    settings: dict[str, Any] = {
        "name": "policy",
        "base_url": url,
        "model": MODEL,
        "has_api_key": True,
        "timeout_seconds": 60.0,
        "max_retries": 0,
        "max_concurrent_calls": 64,
    }
    return ModelRoute(**settings | more)


def target(**more: Any) -> GymTarget:
    settings: dict[str, Any] = {
        "agent": "simple_agent",
        "agent_config": "responses_api_agents/simple_agent/configs/simple_agent.yaml",
        "agent_ref_name": "mcqa_simple_agent",
        "resources_server": "mcqa",
        "model_type": "openai_model",
        "bind_resources_server": True,
        "num_repeats": 2,
        "concurrency": 4,
        "startup_timeout_s": 30,
        "shutdown_grace_s": 5,
        "reward_key": "reward",
    }
    return GymTarget(**settings | more)


def make_plan(dataset: Path, **more: Any) -> EvaluatorPlan:
    settings: dict[str, Any] = {
        "namespace": "team",
        "job": "mcqa",
        "uid": "0a1b2c3d-0000-0000-0000-000000000000",
        "attempt": 1,
        "placement": Placement.SANDBOXED,
        "dataset_file": str(dataset),
        "dataset_label": "ConfigMap rows key rows.jsonl",
        "target": target(),
        "models": [route()],
        "min_coverage": 1.0,
        "parallelism": 4,
        "results_location": "emptyDir",
    }
    return EvaluatorPlan(**settings | more)


@dataclass
class World:
    """Model, hosts and paths of one test; `evaluation` starts an evaluator in it."""

    directory: Path
    model: FakeModel
    hosts: list[FakeHost]
    paths: Paths

    def evaluation(self, plan: EvaluatorPlan) -> Evaluation:
        tokens = replace(TOKENS, hosts={ordinal: TOKENS.hosts[ordinal] for ordinal in range(plan.hosts)})
        return Evaluation(plan, self.paths, tokens, Ports("127.0.0.1", 0, 0, None))

    def plan(self, rows: list[dict[str, Any]], **more: Any) -> EvaluatorPlan:
        dataset = write_rows(self.directory / "dataset.jsonl", rows)
        return make_plan(dataset, models=[route(self.model.url)], **more)


@contextlib.asynccontextmanager
async def world(directory: Path, *, hosts: int = 1, model: FakeModel | None = None) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        model = model or FakeModel()
        model.url = f"{await stack.enter_async_context(serving(model.app()))}/v1"
        made = [FakeHost(ordinal) for ordinal in range(hosts)]
        for host in made:
            host.url = await stack.enter_async_context(serving(host.app()))
        yield World(directory, model, made, paths_in(directory))


async def evaluator_url(evaluation: Evaluation) -> str:
    """Where the evaluation's API listens, once it does."""
    async with asyncio.timeout(60):
        while evaluation.port is None:
            await asyncio.sleep(0.01)
    return f"http://127.0.0.1:{evaluation.port}"
