"""kopf reads watches and lists with `json.loads`, for which it has no setting; here it learns to stand deep JSON, and
to keep of an object no more than the operator does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kopf._cogs.clients import api as kopf_api

from ..api import deep_json
from .kept import kept


def install() -> None:
    """The names are private to kopf, which is pinned: a version without them is an error at once."""
    for name in ("json", "get", "request"):
        if not hasattr(kopf_api, name):
            raise RuntimeError(f"{kopf_api.__name__} has no {name}: it is not the kopf that this was made for")
    kopf_api.json = SimpleNamespace(loads=_loads)
    kopf_api.get = _get


async def _get(url: str, **options: Any) -> Any:
    response = await kopf_api.request(method="get", url=url, **options)
    async with response:
        return _loads(await response.read())


def _loads(data: bytes | str) -> Any:
    return deep_json.loads(data, kept)
