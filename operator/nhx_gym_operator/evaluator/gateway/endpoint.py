"""How a model's endpoint is reached: its address, whose certificates are trusted, which proxy leads there, its key."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager
from functools import cache
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import web
from yarl import URL

from ...api.models import model_field
from ...api.wire.plans import ModelRoute
from ...api.wire.reports import FailureClass
from ...in_pods.mounted import SecretError
from ..addresses import AddressRefused, check_host
from ..model_keys import ModelKeys
from ..trust import distrust
from .refusals import GIVEN_UP, MayPass, Refused, without

_TRUST_SECONDS = 20.0


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

    async def unusable(self) -> str | None:
        """Why it is not to be called: its address is nobody's model, or its certificate cannot be trusted."""
        field = model_field(self.route.name)
        try:
            words = await self._distrusted()
        except AddressRefused as error:
            words = f"{error}; change {field}.baseUrl"
        except ValueError as error:
            words = f"{field}.baseUrl is no address: {error}"
        return f"model {self.route.name} answered no call: {words}" if words else None

    async def _distrusted(self) -> str | None:
        url = URL(self.route.base_url)
        # A host that is an address never comes by the session's resolver.
        await asyncio.to_thread(check_host, url.host or "", loopback=True)
        if url.scheme != "https":
            return None
        timeout = aiohttp.ClientTimeout(total=_TRUST_SECONDS)
        try:
            async with self._session.head(
                self.route.base_url, ssl=self._trust, proxy=self._proxy, timeout=timeout, allow_redirects=False
            ):
                return None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            return distrust(error, model_field(self.route.name))
        except (aiohttp.ClientError, OSError):
            return None

    def headers(self, request: web.Request) -> tuple[dict[str, str], str | None]:
        """Those of a call to the model, and the key that is in them. Raises `Refused` if there is none to be read."""
        try:
            key = self._keys.read(self.route)
        except SecretError as error:
            raise Refused(GIVEN_UP, FailureClass.MODEL, str(error)) from error
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


def _proxy_of(route: ModelRoute) -> URL | None:
    """The environment's proxy for this endpoint. aiohttp would look it up itself (`trust_env`): two threads a call."""
    try:
        url = URL(route.base_url)
    except ValueError:  # `unusable` says so
        return None
    proxy = None if proxy_bypass(url.host or "") else getproxies().get(url.scheme)
    return URL(proxy) if proxy else None


@cache
def _url(base_url: str, path: str) -> URL:
    """Of the job's own models and `CALL_PATHS`, which are few."""
    base = URL(base_url)
    return base.with_path(f"{base.path.rstrip('/')}/{path}").with_query(base.query)
