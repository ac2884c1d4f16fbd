"""The order of one call: its turn, its request, the job's budget, its tries within a deadline, its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import aiohttp
from aiohttp import web

from ...api.conditions import ConditionType
from ...api.wire.endpoints import ROLLOUT_HEADER, ModelUsage, Notice
from ...api.wire.plans import ModelRoute
from ...api.wire.reports import FailureClass
from ..addresses import AddressRefused
from ..budget import UNBOUNDED, Budget, Spent
from ..call_facts import CallFacts
from ..metering import CallCost, Counted, End
from ..model_keys import ModelKeys
from ..retries import delay_before_retry
from ..rollout_calls import RolloutCalls
from .answers import Answers, hand_over, pass_stream
from .endpoint import Endpoint
from .model_request import read_request
from .refusals import GIVEN_UP, MayPass, Refused, error_response, refusal, unforeseen
from .requests import Requests
from .under_way import Asked, Model

CALLER = web.RequestKey("caller", int)
"""Whose token a request came with: a host's ordinal, or `LOCAL_CALLER`."""
LOCAL_CALLER = -1
"""The Gym in this container."""

CALL_PATHS = ("chat/completions", "responses")
_MAX_NOTICE = 900

log = logging.getLogger(__name__)


class ModelGateway:
    """Serves the declared models, and nothing else, over one client session."""

    def __init__(
        self,
        routes: Sequence[ModelRoute],
        keys: ModelKeys,
        session: aiohttp.ClientSession,
        calls: RolloutCalls,
        *,
        budget: Budget = UNBOUNDED,
        counted: Mapping[str, Counted] = MappingProxyType({}),
        trusted: Mapping[str, ssl.SSLContext] = MappingProxyType({}),
    ) -> None:
        """`counted` is what earlier attempts of the job used, by model name; `budget` bounds all of it;
        `trusted` is by whom a model's certificate may be signed, where that is not the system's authorities."""
        self._models = {
            route.name: Model(
                Endpoint(route, keys, session, trusted.get(route.name)),
                asyncio.Semaphore(route.max_concurrent_calls),
                counted.get(route.name, Counted()).model_copy(deep=True),
            )
            for route in routes
        }
        self._budget = budget
        self._slots = budget.slots()
        self._requests = Requests()
        self._answers = Answers()
        self._under_way: set[Asked] = set()
        self._calls = calls

    def usage(self) -> dict[str, ModelUsage]:
        """What was counted so far, by model name."""
        return {name: model.usage.shown() for name, model in self._models.items()}

    def usage_if_lost(self) -> dict[str, Counted]:
        """What was counted, if this process is gone the next moment: of calls that are under way nobody will know more
        than that they were made."""
        usage = {name: model.usage.model_copy() for name, model in self._models.items()}
        now = time.monotonic()
        for asked in self._under_way:
            if asked.sent:
                usage[asked.model.name].add(CallCost(End.ABORTED, seconds=now - asked.began))
        return usage

    def spent(self) -> Spent | None:
        """That the job has used what it may; None while it has not."""
        return self._budget.spent(model.usage for model in self._models.values())

    def unmetered_calls(self) -> int:
        """Calls that stated no tokens, which a bound on tokens therefore does not see."""
        return sum(model.usage.unmetered_calls for model in self._models.values())

    def silence(self, shortest_s: float) -> str:
        """What is to be said of models that for so long were asked and have not answered; empty if there is none."""
        return "; ".join(filter(None, (model.silence(shortest_s) for model in self._models.values())))

    def facts(self) -> dict[str, CallFacts]:
        """How each model was asked and as what it answered, by model name."""
        return {name: model.facts for name, model in self._models.items()}

    def dead_models(self) -> dict[str, str]:
        """Models that answered no call at all, with the last words of each."""
        return {
            name: model.last_refusal
            for name, model in self._models.items()
            if model.usage.failed_calls and not model.usage.calls
        }

    async def look_at_endpoints(self) -> None:
        """Raises `Unusable` if one of the models is not to be called. Whether it is there, and takes the key, is in
        `notices` only: it may come up later."""

        async def look(model: Model) -> None:
            model.doubt = await model.endpoint.look()

        await asyncio.gather(*map(look, self._models.values()))
        for notice in self.notices():
            log.warning("%s", notice.message)

    def notices(self) -> list[Notice]:
        """What is in doubt since the first look at the endpoints: of models that have answered no call so far."""
        doubts = [model.doubt for model in self._models.values() if model.doubt]
        if not doubts:
            return []
        message = "; ".join(doubt.words for doubt in doubts)[:_MAX_NOTICE]
        return [Notice(type=ConditionType.MODEL_IN_DOUBT, reason=doubts[0].reason, message=message)]

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        """`GET /models/<name>/v1/models`: the one model behind this name. Costs no call."""
        model = self._models.get(request.match_info["name"])
        if model is None:
            return self._unknown(request)
        entry = {"id": model.endpoint.route.model, "object": "model", "created": 0, "owned_by": model.name}
        return web.json_response({"object": "list", "data": [entry]})

    async def call(self, request: web.Request) -> web.StreamResponse:
        """`POST /models/<name>/v1/chat/completions` or `/responses`."""
        model = self._models.get(request.match_info["name"])
        if model is None:
            return self._unknown(request)
        # The slot comes before the body, so that waiting calls hold no memory here.
        async with model.slots, self._slots, contextlib.AsyncExitStack() as held:
            call = self._calls.began(model.name, request[CALLER], request.headers.get(ROLLOUT_HEADER, ""))
            asked = Asked(model, request, call, self._calls, held)
            try:
                asked.body = await self._requests.body(asked)
                asks = read_request(asked.body, model.endpoint.route)
                self._check_budget()
                model.facts.asked(asks)
                with self._counted(asked):
                    asked.deadline = asyncio.get_running_loop().time() + model.endpoint.route.timeout_seconds
                    try:
                        answer = await self._call(asked)
                    except Refused:
                        raise
                    except Exception as error:
                        # Gym would repeat a 500, and the environment could make a reward of what no model said.
                        raise unforeseen(error) from error
                return await hand_over(request, answer)
            except Refused as refused:
                return error_response(refused.status, f"{refused.words} [{asked.given_up(refused)}]", refused.code)

    def _check_budget(self) -> None:
        spent = self._budget.spent((model.usage for model in self._models.values()), len(self._under_way))
        if spent:
            raise Refused(GIVEN_UP, FailureClass.BUDGET, spent.words, spent.code)

    @contextlib.contextmanager
    def _counted(self, asked: Asked) -> Iterator[None]:
        """Counts a call as under way, and at its end as what it was. One that its caller left before it was sent is
        none: nobody asked the model, and it is no sign of life."""
        cost = asked.cost
        asked.began = time.monotonic()
        self._under_way.add(asked)
        asked.model.began()
        try:
            yield
        except asyncio.CancelledError:
            # Whoever asked has gone. The model may do its work all the same, at a price that nobody states.
            if cost.end is None and asked.sent:
                cost.end = End.ABORTED
            raise
        except Exception:
            cost.end = End.FAILED
            raise
        finally:
            self._under_way.remove(asked)
            asked.model.under_way -= 1
            cost.seconds = time.monotonic() - asked.began
            asked.model.usage.add(cost)
            self._calls.ended(asked.call, cost)

    def _unknown(self, request: web.Request) -> web.Response:
        names = ", ".join(sorted(self._models))
        return error_response(
            404, f"this job declares no model {request.match_info['name']!r}, only: {names}", "unknown_model"
        )

    async def _call(self, asked: Asked) -> web.StreamResponse:
        endpoint, clock = asked.model.endpoint, asyncio.get_running_loop().time
        retries, number, words = endpoint.route.max_retries, 0, ""
        while True:
            try:
                async with asyncio.timeout_at(asked.deadline) as timer:
                    return await self._try(asked, timer)
            except TimeoutError as error:
                last = f"; before that: {words}" if words else ""
                raise Refused(GIVEN_UP, FailureClass.TIMEOUT, f"no answer within {endpoint.limit}{last}") from error
            except MayPass as failure:
                words = str(failure)
                asked.model.failed(words)
                delay = delay_before_retry(number, failure.headers)
            number += 1
            if number > retries:
                raise Refused(GIVEN_UP, FailureClass.TRANSIENT, f"given up after {number} tries: {words}")
            if clock() + delay >= asked.deadline:
                due = f"the next try would be due in {delay:.0f} s, past the call's deadline ({endpoint.limit})"
                raise Refused(GIVEN_UP, FailureClass.TRANSIENT, f"{words}; {due}")
            await asyncio.sleep(delay)

    async def _try(self, asked: Asked, timer: asyncio.Timeout) -> web.StreamResponse:
        endpoint = asked.model.endpoint
        headers, key = endpoint.headers(asked.request)
        asked.sent = True
        try:
            async with endpoint.post(asked.request.match_info["path"], asked.body, headers) as answer:
                if answer.status >= 300:
                    raise await refusal(answer, key)
                if answer.content_type != "text/event-stream":
                    return await self._answers.take(asked, answer, key)
                first = await answer.content.readany()
                if not first:
                    raise MayPass("the model server's stream ended before its first byte")
                timer.reschedule(None)
                return await pass_stream(asked, answer, first, key)
        except (AddressRefused, aiohttp.ClientError, OSError) as error:
            raise endpoint.failure(error, key) from error
