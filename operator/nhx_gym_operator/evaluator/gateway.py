"""The model gateway: the one way from a job's Gym to its models.

Gym speaks to `/models/<name>/v1/…` with its own job token. The gateway takes the model's real key
instead, keeps a deadline per call, repeats what may pass, limits concurrency and counts tokens.

What it returns must be final for Gym. NeMo Gym 0.5.0 repeats 429, 502, 503, 504 and 520 every 0.5 s
without end, 500 three times, and has no client timeout (`RATE_LIMIT_ERROR_CODES`, `_request_with_retry`
in `nemo_gym/openai_utils.py`); every other status ends the rollout. So a call that is given up is
answered 424. And its `vllm_model` takes any 400 whose text has `max_tokens` or `context length` for an
over-long prompt and invents an empty answer (`responses_api_models/vllm_model/app.py`), which a verifier
then scores 0; its `openai_model` fails the rollout over the very same refusal. A number must not hang on that, and
nobody may be scored for what the model never said: a 400 becomes 422, over which every model server of Gym fails.
A prompt that outgrew the model's context is told by its class, `context`, and scores nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import web
from yarl import URL

from ..api.models import model_field
from ..api.wire.endpoints import ROLLOUT_HEADER, ModelUsage
from ..api.wire.plans import ModelRoute
from ..api.wire.reports import FailureClass
from ..in_pods.masking import Mask
from ..in_pods.mounted import SecretError
from .addresses import AddressRefused, check_host
from .budget import UNBOUNDED, Budget, Spent
from .call_facts import CallFacts
from .memory import Room, json_values
from .metering import CallCost, Counted, End, EventStream, failed_response, usage_of
from .model_keys import ModelKeys
from .model_request import NotPassed, read_request
from .retries import delay_before_retry, is_retried
from .rollout_calls import NOT_MADE, Call, FailedCall, RolloutCalls
from .rollouts import well_formed
from .trust import distrust

CALLER = web.RequestKey("caller", int)
"""Whose token a request came with: a host's ordinal, or `LOCAL_CALLER`."""
LOCAL_CALLER = -1
"""The Gym in this container."""

MAX_REQUEST_BYTES = 32 * 1024 * 1024
MAX_REQUEST_VALUES = 1_000_000
REQUEST_ROOM_BYTES = 6 * MAX_REQUEST_BYTES
"""For the requests of all calls that are under way, but for small ones. Each is held until its call has ended: it may
have to be sent again. While one is sent it takes as much again. So it is a fifth of the 2 GiB that an evaluator has by
default; answers of hosts take less than half (`collect/answers.py`). What finds no room waits: a 429 Gym would repeat
for ever."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ANSWER_VALUES = 2_000_000
ANSWER_ROOM_BYTES = 3 * MAX_ANSWER_BYTES
"""For whole answers, but for small ones. Each is held until its caller has taken it."""
SMALL_BYTES = 256 * 1024
"""What needs no room, and waits for none: of as many calls as run at once it is little."""
HANDOVER_SECONDS = 60.0
"""For a caller to take a whole answer."""
_TRUST_SECONDS = 20.0
REQUEST_SECONDS = 60.0
"""For a request to arrive whole, once its turn has come; for a large one, once it has room."""
GIVEN_UP = 424
"""Failed Dependency: a status that neither Gym nor the openai client repeats."""
CALL_PATHS = ("chat/completions", "responses")

_PASSING_CODES = frozenset({"server_error", "rate_limit_exceeded"})
"""Codes of a failed response that another try may not have (OpenAI API reference, "The response object")."""
_STATUS_CODES = frozenset(map(str, range(400, 600)))
"""What OpenRouter has for a code."""
_GYM_REPEATS = frozenset({408, 409, 429})
_CONTEXT_LENGTH = re.compile(
    r"context[ _](length|size|window)|max_tokens must be at least 1|longer than the maximum model length"
    r"|prompt is too long|input token count .* exceeds|`?inputs`? (must have less than|tokens \+ `?max_new_tokens)",
    re.IGNORECASE,
)
"""How OpenAI-compatible servers say that prompt and answer do not fit: OpenAI's `context_length_exceeded`, the messages
of vLLM that vllm_model's app.py lists, and those of SGLang, llama.cpp, TGI, Anthropic and Gemini."""
_CONTEXT_STATUSES = frozenset({400, 413, 422})
_MAX_WORDS = 1000
_MAX_REFUSAL_BYTES = 256 * 1024

log = logging.getLogger(__name__)


class _Refused(Exception):
    """The model did not answer. `status` and `code` are what Gym gets."""

    def __init__(self, status: int, failure_class: FailureClass, words: str, code: str = "model_call_failed") -> None:
        super().__init__(words)
        self.status = status
        self.failure_class = failure_class
        self.words = words
        self.code = code


class _MayPass(Exception):
    """One try failed in a way that another try may not."""

    def __init__(self, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.headers = headers or {}


@dataclass
class _Model:
    route: ModelRoute
    slots: asyncio.Semaphore
    usage: Counted = field(default_factory=Counted)
    facts: CallFacts = field(default_factory=CallFacts)
    last_refusal: str = ""


@dataclass(eq=False)
class _Asked:
    """One call on its way through the gateway."""

    model: _Model
    request: web.Request
    call: Call
    held: contextlib.AsyncExitStack
    """The room that its request and its answer take, until it is over."""
    has_answer_room: bool = False
    body: bytes = b""
    deadline: float = 0.0
    """By the event loop's clock."""
    began: float = 0.0
    """By the monotonic clock."""
    sent: bool = False
    """Whether it was on its way to the model: from then on it has a price, whoever leaves."""
    cost: CallCost = field(default_factory=CallCost)


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
            route.name: _Model(
                route,
                asyncio.Semaphore(route.max_concurrent_calls),
                counted.get(route.name, Counted()).model_copy(deep=True),
            )
            for route in routes
        }
        self._budget = budget
        self._slots = budget.slots()
        self._requests = Room(REQUEST_ROOM_BYTES)
        self._answers = Room(ANSWER_ROOM_BYTES)
        self._under_way: set[_Asked] = set()
        self._proxies = {route.name: _proxy_of(route) for route in routes}
        self._trust = {route.name: trusted.get(route.name, True) for route in routes}
        self._keys = keys
        self._session = session
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
                usage[asked.model.route.name].add(CallCost(End.ABORTED, seconds=now - asked.began))
        return usage

    def spent(self) -> Spent | None:
        """That the job has used what it may; None while it has not."""
        return self._budget.spent(model.usage for model in self._models.values())

    def unmetered_calls(self) -> int:
        """Calls that stated no tokens, which a bound on tokens therefore does not see."""
        return sum(model.usage.unmetered_calls for model in self._models.values())

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

    async def check_endpoints(self) -> str | None:
        """Why one of the models is not to be called: its address is nobody's model, or its certificate cannot be
        trusted. Whether a model is there, and what it says, is not asked: it may come up later."""
        found = await asyncio.gather(*(self._unusable(model.route) for model in self._models.values()))
        return next(filter(None, found), None)

    async def _unusable(self, route: ModelRoute) -> str | None:
        try:
            return await self._distrusted(route)
        except AddressRefused as error:
            words = f"{error}; change {model_field(route.name)}.baseUrl"
        except ValueError as error:
            words = f"{model_field(route.name)}.baseUrl is no address: {error}"
        return f"model {route.name} answered no call: {words}"

    async def _distrusted(self, route: ModelRoute) -> str | None:
        url = URL(route.base_url)
        # A host that is an address never comes by the session's resolver.
        await asyncio.to_thread(check_host, url.host or "", loopback=True)
        if url.scheme != "https":
            return None
        timeout = aiohttp.ClientTimeout(total=_TRUST_SECONDS)
        try:
            async with self._session.head(
                route.base_url,
                ssl=self._trust[route.name],
                proxy=self._proxies[route.name],
                timeout=timeout,
                allow_redirects=False,
            ):
                return None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            return f"model {route.name} answered no call: {distrust(error, model_field(route.name))}"
        except (aiohttp.ClientError, OSError):
            return None

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        """`GET /models/<name>/v1/models`: the one model behind this name. Costs no call."""
        model = self._models.get(request.match_info["name"])
        if model is None:
            return self._unknown(request)
        entry = {"id": model.route.model, "object": "model", "created": 0, "owned_by": model.route.name}
        return web.json_response({"object": "list", "data": [entry]})

    async def call(self, request: web.Request) -> web.StreamResponse:
        """`POST /models/<name>/v1/chat/completions` or `/responses`."""
        model = self._models.get(request.match_info["name"])
        if model is None:
            return self._unknown(request)
        # The slot comes before the body, so that waiting calls hold no memory here.
        async with model.slots, self._slots, contextlib.AsyncExitStack() as held:
            call = self._calls.began(model.route.name, request[CALLER], request.headers.get(ROLLOUT_HEADER, ""))
            asked = _Asked(model, request, call, held)
            try:
                asked.body = await self._request_body(asked)
                asks = _read_request(asked.body, model.route)
                self._check_budget()
                model.facts.asked(asks)
                with self._counted(asked):
                    asked.deadline = asyncio.get_running_loop().time() + model.route.timeout_seconds
                    answer = await self._call(asked)
                return await _handed_over(request, answer)
            except _Refused as refused:
                return self._give_up(asked, refused)

    async def _request_body(self, asked: _Asked) -> bytes:
        parts: list[bytes] = []
        size, has_room, clock = 0, False, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(REQUEST_SECONDS) as timer:
                while part := await asked.request.content.readany():
                    size += len(part)
                    if size > MAX_REQUEST_BYTES:
                        raise _request_too_large(f"{MAX_REQUEST_BYTES} bytes")
                    if size > SMALL_BYTES and not has_room:
                        timer.reschedule(None)
                        await asked.held.enter_async_context(self._requests.taken(_room_for(asked.request)))
                        timer.reschedule(clock() + REQUEST_SECONDS)
                        has_room = True
                    parts.append(part)
        except TimeoutError as error:
            words = f"the request did not arrive within {REQUEST_SECONDS:g} s"
            raise _Refused(GIVEN_UP, FailureClass.ENVIRONMENT, words, "request_too_slow") from error
        body = b"".join(parts)
        # Parsing it would take what they take, and the loop's time.
        if size > MAX_REQUEST_VALUES and json_values(body, MAX_REQUEST_VALUES) > MAX_REQUEST_VALUES:
            raise _request_too_large(f"{MAX_REQUEST_VALUES} JSON values")
        return body

    def _check_budget(self) -> None:
        spent = self._budget.spent((model.usage for model in self._models.values()), len(self._under_way))
        if spent:
            raise _Refused(GIVEN_UP, FailureClass.BUDGET, spent.words, spent.code)

    @contextlib.contextmanager
    def _counted(self, asked: _Asked) -> Iterator[None]:
        """Counts a call as under way, and at its end as what it was. One that its caller left before it was sent is
        none: nobody asked the model, and it is no sign of life."""
        cost = asked.cost
        asked.began = time.monotonic()
        self._under_way.add(asked)
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
            cost.seconds = time.monotonic() - asked.began
            asked.model.usage.add(cost)
            self._calls.ended(asked.call, cost)

    def _unknown(self, request: web.Request) -> web.Response:
        names = ", ".join(sorted(self._models))
        return _error(404, f"this job declares no model {request.match_info['name']!r}, only: {names}", "unknown_model")

    def _give_up(self, asked: _Asked, refused: _Refused) -> web.Response:
        model = asked.model
        if refused.failure_class not in NOT_MADE:
            model.last_refusal = refused.words
        call = FailedCall(model.route.name, refused.failure_class, refused.words)
        mark = self._calls.failed(asked.call, asked.body, call)
        log.warning("model %s gave no answer (%s): %s", model.route.name, refused.failure_class, refused.words)
        return _error(refused.status, f"{refused.words} [{mark}]", refused.code)

    def _answered(self, asked: _Asked, answer: object) -> None:
        asked.cost.end = End.ANSWERED
        asked.model.facts.answer(answer)
        self._calls.answered(asked.call, asked.body)

    def _left(self, asked: _Asked, events: EventStream) -> None:
        """The caller has gone while it got a stream. Some do so as soon as they see its end."""
        if events.complete and events.failed is None:
            self._answered(asked, events.answer)
        else:
            asked.cost.end = End.ABORTED

    async def _call(self, asked: _Asked) -> web.StreamResponse:
        route, clock = asked.model.route, asyncio.get_running_loop().time
        limit = _limit(route)
        number, words = 0, ""
        while True:
            try:
                async with asyncio.timeout_at(asked.deadline) as timer:
                    return await self._try(asked, timer)
            except TimeoutError as error:
                last = f"; before that: {words}" if words else ""
                raise _Refused(GIVEN_UP, FailureClass.TIMEOUT, f"no answer within {limit}{last}") from error
            except _MayPass as failure:
                words = str(failure)
                delay = delay_before_retry(number, failure.headers)
            number += 1
            if number > route.max_retries:
                raise _Refused(GIVEN_UP, FailureClass.TRANSIENT, f"given up after {number} tries: {words}")
            if clock() + delay >= asked.deadline:
                due = f"the next try would be due in {delay:.0f} s, past the call's deadline ({limit})"
                raise _Refused(GIVEN_UP, FailureClass.TRANSIENT, f"{words}; {due}")
            await asyncio.sleep(delay)

    async def _try(self, asked: _Asked, timer: asyncio.Timeout) -> web.StreamResponse:
        route = asked.model.route
        headers, key = self._headers(route, asked.request)
        asked.sent = True
        try:
            async with self._session.post(
                _url(route.base_url, asked.request.match_info["path"]),
                data=asked.body,
                headers=headers,
                ssl=self._trust[route.name],
                proxy=self._proxies[route.name],
                # A redirect would carry the key to whatever host it names.
                allow_redirects=False,
            ) as answer:
                if answer.status >= 300:
                    raise _refusal(answer, await _beginning(answer), key)
                if answer.content_type == "text/event-stream":
                    first = await answer.content.readany()
                    if not first:
                        raise _MayPass("the model server's stream ended before its first byte")
                    # From here on nothing may be repeated; the stream keeps the deadline itself.
                    timer.reschedule(None)
                    return await self._pass_stream(asked, answer, first)
                return self._pass_answer(asked, answer, await self._read(asked, answer), key)
        except AddressRefused as error:
            raise _Refused(
                GIVEN_UP, FailureClass.MODEL, f"{error}; look at {model_field(route.name)}.baseUrl"
            ) from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise _Refused(GIVEN_UP, FailureClass.MODEL, distrust(error, model_field(route.name))) from error
        except aiohttp.ClientSSLError as error:
            raise _Refused(GIVEN_UP, FailureClass.MODEL, _without(str(error), key)) from error
        except (aiohttp.ClientError, OSError) as error:
            # aiohttp says how it would speak TLS for an http:// address too.
            words = f"{type(error).__name__}: {error}".replace(" ssl:default", "")
            raise _MayPass(_without(words, key)) from error

    def _headers(self, route: ModelRoute, request: web.Request) -> tuple[dict[str, str], str | None]:
        try:
            key = self._keys.read(route)
        except SecretError as error:
            raise _Refused(GIVEN_UP, FailureClass.MODEL, str(error)) from error
        headers = {
            "Content-Type": request.headers.get("Content-Type", "application/json"),
            "Accept": request.headers.get("Accept", "*/*"),
            # Bytes pass as they are, and usage has to be read from them.
            "Accept-Encoding": "identity",
            "User-Agent": "nhx-gym-operator",
        }
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return headers, key

    async def _read(self, asked: _Asked, answer: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise _too_large(f"{MAX_ANSWER_BYTES} bytes")
            # Once, though an answer before it was none: whoever holds room must not wait for more.
            if size > SMALL_BYTES and not asked.has_answer_room:
                await asked.held.enter_async_context(self._answers.taken(MAX_ANSWER_BYTES))
                asked.has_answer_room = True
            parts.append(part)
        body = b"".join(parts)
        if size > MAX_ANSWER_VALUES and json_values(body, MAX_ANSWER_VALUES) > MAX_ANSWER_VALUES:
            raise _too_large(f"{MAX_ANSWER_VALUES} JSON values")
        return body

    def _pass_answer(self, asked: _Asked, answer: aiohttp.ClientResponse, body: bytes, key: str | None) -> web.Response:
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError) as error:
            shown = _words(_without(body[:_MAX_WORDS].decode("utf-8", errors="replace"), key))
            raise _MayPass(f"the model server's answer is not JSON: {shown}") from error
        failed = failed_response(parsed)
        if failed is not None:
            raise _failed_answer(*failed)
        asked.cost.tokens = usage_of(parsed)
        self._answered(asked, parsed)
        content_type = answer.headers.get("Content-Type", "application/json")
        return web.Response(status=answer.status, body=body, headers={"Content-Type": content_type})

    async def _pass_stream(self, asked: _Asked, answer: aiohttp.ClientResponse, first: bytes) -> web.StreamResponse:
        request = asked.request
        response = web.StreamResponse(
            status=answer.status,
            headers={"Content-Type": answer.headers["Content-Type"], "Cache-Control": "no-cache"},
        )
        events = EventStream()
        broken: _Refused | None = None
        try:
            async with asyncio.timeout_at(asked.deadline):
                await response.prepare(request)
                size, chunk = 0, first
                while chunk:
                    size += len(chunk)
                    if size > MAX_ANSWER_BYTES:
                        raise _too_large(f"{MAX_ANSWER_BYTES} bytes")
                    events.feed(chunk)
                    await response.write(chunk)
                    chunk = await answer.content.readany()
        except _Refused as error:
            broken = error
        except TimeoutError:
            limit = _limit(asked.model.route)
            broken = _Refused(GIVEN_UP, FailureClass.TIMEOUT, f"the model server's stream did not end within {limit}")
        except asyncio.CancelledError:
            self._left(asked, events)
            raise
        except (aiohttp.ClientError, OSError) as error:
            if request.transport is None or request.transport.is_closing():
                self._left(asked, events)
                return response
            words = f"the model server's stream broke: {type(error).__name__}"
            broken = _Refused(GIVEN_UP, FailureClass.TRANSIENT, words)
        finally:
            events.finish()
            asked.cost.tokens, asked.cost.in_part = events.tokens, True
        if broken is None and events.failed is not None:
            # The server said so itself, in an event that has been passed on: such a stream ends cleanly.
            asked.cost.end = End.FAILED
            self._give_up(asked, _final(_failed_answer(*events.failed)))
            return response
        if broken is None and not events.complete:
            words = "the model server's stream ended without finish reason or [DONE]"
            broken = _Refused(GIVEN_UP, FailureClass.TRANSIENT, words)
        if broken is None:
            self._answered(asked, events.answer)
            return response
        # Bytes were passed on, so this cannot be repeated; and no clean end may be invented for it.
        asked.cost.end = End.FAILED
        self._give_up(asked, broken)
        response.force_close()
        if request.transport is not None:
            request.transport.abort()
        return response


def _room_for(request: web.Request) -> int:
    """Bytes that its body may have. One without a length may have any; so may a packed one, which aiohttp unpacks."""
    length = request.content_length
    if length is None or "Content-Encoding" in request.headers:
        return MAX_REQUEST_BYTES
    return min(length, MAX_REQUEST_BYTES)


def _read_request(body: bytes, route: ModelRoute) -> Mapping[str, object]:
    try:
        return read_request(body, route)
    except NotPassed as why:
        raise _Refused(422, FailureClass.ENVIRONMENT, str(why), "model_not_declared") from why


def _request_too_large(most: str) -> _Refused:
    return _Refused(413, FailureClass.ENVIRONMENT, f"a request has at most {most}", "request_too_large")


def _refusal(answer: aiohttp.ClientResponse, body: bytes, key: str | None) -> Exception:
    """What a status that is no success means."""
    text = _without(body.decode("utf-8", errors="replace"), key)
    words = f"HTTP {answer.status} from the model server: {_words(text)}"
    if answer.status < 400:
        return _Refused(GIVEN_UP, FailureClass.MODEL, f"{words} (redirects are not followed; fix baseUrl)")
    if answer.status in _CONTEXT_STATUSES and _CONTEXT_LENGTH.search(text):
        return _Refused(422, FailureClass.CONTEXT, words, "context_length_exceeded")
    if is_retried(answer.status, answer.headers):
        return _MayPass(words, answer.headers)
    if answer.status >= 500 or answer.status in _GYM_REPEATS:
        return _Refused(GIVEN_UP, FailureClass.MODEL, words)
    return _Refused(422 if answer.status == 400 else answer.status, FailureClass.MODEL, words)


def _failed_answer(code: str, message: str) -> Exception:
    """What an answer means that was sent as a success and says that it failed."""
    words = f"the model server's answer says that it failed: {_words(message)} ({_words(code)})"
    if _CONTEXT_LENGTH.search(f"{code} {message}"):
        return _Refused(422, FailureClass.CONTEXT, words, "context_length_exceeded")
    passes = code in _PASSING_CODES or (code in _STATUS_CODES and is_retried(int(code), {}))
    return _MayPass(words) if passes else _Refused(GIVEN_UP, FailureClass.MODEL, words)


def _final(failure: Exception) -> _Refused:
    """The failure of a call that can't be repeated."""
    return failure if isinstance(failure, _Refused) else _Refused(GIVEN_UP, FailureClass.TRANSIENT, str(failure))


def _too_large(most: str) -> _Refused:
    return _Refused(GIVEN_UP, FailureClass.MODEL, f"the model server's answer exceeds {most}")


async def _handed_over(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """Written out while its call has its turn still: of a caller that takes no answers, few are held."""
    try:
        async with asyncio.timeout(HANDOVER_SECONDS):
            await answer.prepare(request)
            await answer.write_eof()
    except TimeoutError:
        log.warning("a caller did not take its answer within %g s", HANDOVER_SECONDS)
        if request.transport is not None:
            request.transport.abort()
    except OSError:
        log.debug("a caller went away while it was given its answer")
    return answer


def _limit(route: ModelRoute) -> str:
    return f"{model_field(route.name)}.timeoutSeconds = {route.timeout_seconds:g}"


def _proxy_of(route: ModelRoute) -> URL | None:
    """The environment's proxy for this endpoint. aiohttp would look it up itself (`trust_env`): two threads a call."""
    try:
        url = URL(route.base_url)
    except ValueError:  # `check_endpoints` says so
        return None
    proxy = None if proxy_bypass(url.host or "") else getproxies().get(url.scheme)
    return URL(proxy) if proxy else None


@cache
def _url(base_url: str, path: str) -> URL:
    """Of the job's own models and `CALL_PATHS`, which are few."""
    base = URL(base_url)
    return base.with_path(f"{base.path.rstrip('/')}/{path}").with_query(base.query)


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    """Of a refusal, of which only the first words are shown."""
    body = b""
    while more := await answer.content.read(_MAX_REFUSAL_BYTES - len(body)):
        body += more
    return body


def _words(text: str) -> str:
    """The message in an error body, whatever its shape."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return well_formed(" ".join(str(message or text).split())[:_MAX_WORDS]) or "no text"


def _without(text: str, key: str | None) -> str:
    return Mask([key]).text(text) if key else text


def _error(status: int, message: str, code: str) -> web.Response:
    body = {"error": {"message": message, "type": "nhx_gateway", "code": code}}
    return web.json_response(body, status=status)
