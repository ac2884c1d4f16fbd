"""How a model's endpoint is reached: its address, whose certificates are trusted, which proxy leads there, its key."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import web
from yarl import URL

from ...api.conditions import NoticeReason
from ...api.models import model_field
from ...api.wire.plans import ModelRoute
from ...api.wire.reports import FailureClass
from ...in_pods.mounted import SecretError
from ..addresses import AddressRefused, check_host, trouble_in_words
from ..model_keys import ModelKeys
from ..trust import distrust
from .refusals import GIVEN_UP, MayPass, Refused, refusal, without

LOOK_SECONDS = 10.0
"""For the first look at an endpoint. Nothing else begins meanwhile."""
_SAID = 200
"""Characters of what the server, or the system, says."""


class Unusable(Exception):
    """The model is not to be called; says why."""


class _Distrusted(Exception):
    pass


class Doubt(NamedTuple):
    """What seems wrong with an endpoint, and what to change."""

    reason: NoticeReason
    words: str


class Endpoint:
    """One model's."""

    def __init__(
        self, route: ModelRoute, keys: ModelKeys, session: aiohttp.ClientSession, trusted: ssl.SSLContext | None = None
    ) -> None:
        """`trusted` is by whom its certificate may be signed, where that is not the system's authorities."""
        self.route = route
        self._keys = keys
        self._session = session
        self._trust = trusted or True
        self._proxy = _proxy_of(route)

    @property
    def limit(self) -> str:
        """The field that bounds a call, and its value."""
        return f"{model_field(self.route.name)}.timeoutSeconds = {self.route.timeout_seconds:g}"

    async def look(self) -> Doubt | None:
        """Ask for its list of models, as it will be called: whether something seems wrong with address or key. A model
        may come up later, so that ends nothing. Raises `Unusable` over an address that is nobody's model, and a
        certificate that cannot be trusted."""
        name, field = self.route.name, model_field(self.route.name)
        try:
            return await self._look()
        except AddressRefused as error:
            words = f"{error}; change {field}.baseUrl"
        except _Distrusted as error:
            words = str(error)
        except ValueError as error:
            words = f"{field}.baseUrl is no address: {error}"
        raise Unusable(f"model {name} answered no call: {words}")

    async def _look(self) -> Doubt | None:
        # A host that is an address never comes by the session's resolver.
        await asyncio.to_thread(check_host, URL(self.route.base_url).host or "", loopback=True)
        key = self._keys.read(self.route)
        try:
            async with self._session.get(
                _url(self.route.base_url, "models"),
                headers=_with_key({"Accept": "application/json"}, key),
                ssl=self._trust,
                proxy=self._proxy,
                timeout=aiohttp.ClientTimeout(total=LOOK_SECONDS),
                allow_redirects=False,
            ) as answer:
                return await self._doubt_over(answer, key)
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise _Distrusted(distrust(error, model_field(self.route.name))) from error
        except (aiohttp.ClientError, OSError) as error:
            return self._doubt_of_reach(error, key)

    async def _doubt_over(self, answer: aiohttp.ClientResponse, key: str | None) -> Doubt | None:
        field, status = model_field(self.route.name), answer.status
        if status in (401, 403):
            change = f"change the key in the Secret of {field}.apiKey" if key else f"set {field}.apiKey"
            reason, seen = NoticeReason.KEY_REFUSED, "refuses the key" if key else "wants a key"
        elif status == 404:
            change = f"look at {field}.baseUrl, which usually ends in /v1; a server that lists no models may be right"
            reason, seen = NoticeReason.ENDPOINT_NOT_FOUND, f"knows no {answer.url.path}"
        elif 300 <= status < 400:
            change = f"set {field}.baseUrl to where the model is: redirects are not followed"
            reason, seen = NoticeReason.ENDPOINT_NOT_FOUND, "is elsewhere"
        else:
            return None
        said = str(await refusal(answer, key))[:_SAID]
        return Doubt(reason, f"{self._called} {seen} ({said}): {change}")

    def _doubt_of_reach(self, error: Exception, key: str | None) -> Doubt:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        seen = trouble_in_words(cause) if isinstance(cause, OSError) else f"{type(cause).__name__}: {cause}"
        change = f"change {model_field(self.route.name)}.baseUrl, unless its server is still starting"
        words = f"{self._called} is out of reach ({without(seen, key)[:_SAID]}): {change}"
        return Doubt(NoticeReason.ENDPOINT_UNREACHABLE, words)

    @property
    def _called(self) -> str:
        return f"model {self.route.name}'s endpoint {self.route.base_url}"

    def headers(self, request: web.Request) -> tuple[dict[str, str], str | None]:
        """Those of a call to the model, and the key that is in them. Raises `Refused` if there is none to be read."""
        try:
            key = self._keys.read(self.route)
        except SecretError as error:
            raise Refused(GIVEN_UP, FailureClass.MODEL, str(error)) from error
        # Whatever the caller calls it: JSON was judged, and out of the same bytes a server that is told of a form, as
        # LiteLLM's proxy may be, reads another model.
        headers = {"Content-Type": "application/json", "Accept": request.headers.get("Accept", "*/*")}
        return _with_key(headers, key), key

    def post(
        self, path: str, body: bytes, headers: dict[str, str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Below the model's base URL."""
        return self._session.post(
            _url(self.route.base_url, path),
            data=body,
            headers=headers,
            ssl=self._trust,
            proxy=self._proxy,
            # A redirect would carry the key to whatever host it names.
            allow_redirects=False,
        )

    def failure(self, error: Exception, key: str | None) -> Refused | MayPass:
        """What it means that it could not be reached, or not to the end of its answer."""
        field = model_field(self.route.name)
        match error:
            case AddressRefused():
                return Refused(GIVEN_UP, FailureClass.MODEL, f"{error}; look at {field}.baseUrl")
            case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
                return Refused(GIVEN_UP, FailureClass.MODEL, distrust(error, field))
            case aiohttp.ClientSSLError():
                return Refused(GIVEN_UP, FailureClass.MODEL, without(str(error), key))
            case _:
                # aiohttp says how it would speak TLS for an http:// address too.
                words = f"{type(error).__name__}: {error}".replace(" ssl:default", "")
                return MayPass(without(words, key))


def _with_key(headers: dict[str, str], key: str | None) -> dict[str, str]:
    # Bytes pass as they are, and usage has to be read from them.
    headers |= {"Accept-Encoding": "identity", "User-Agent": "nhx-gym-operator"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _proxy_of(route: ModelRoute) -> URL | None:
    """The environment's proxy for this endpoint. aiohttp would look it up itself (`trust_env`): two threads a call."""
    try:
        url = URL(route.base_url)
    except ValueError:  # `look` says so
        return None
    proxy = None if proxy_bypass(url.host or "") else getproxies().get(url.scheme)
    return URL(proxy) if proxy else None


@cache
def _url(base_url: str, path: str) -> URL:
    """Of the job's own models and `CALL_PATHS`, which are few."""
    base = URL(base_url)
    return base.with_path(f"{base.path.rstrip('/')}/{path}").with_query(base.query)
