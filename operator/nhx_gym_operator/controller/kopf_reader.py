"""kopf reads watches and lists with `json.loads`, for which it has no setting; here it learns to stand deep JSON, to
keep of an object no more than the operator does, and to tell when it has read a list, be it one of nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from kopf._cogs.clients import api as kopf_api

from ..api import deep_json
from .trimming import trimmed

_LIST = "List"
_listed: ContextVar[Callable[[str], None]] = ContextVar("listed")
"""Of the operator that a task of kopf belongs to: a process may run several."""


def install(listed: Callable[[str], None]) -> None:
    """`listed` is told the kind of each list that the operator reads which is started in this context. The names are
    private to kopf, which is pinned: a version without them is an error at once."""
    _listed.set(listed)
    for name in ("json", "get", "request"):
        if not hasattr(kopf_api, name):
            raise RuntimeError(f"{kopf_api.__name__} has no {name}: it is not the kopf that this was made for")
    kopf_api.json = SimpleNamespace(loads=_loads)
    kopf_api.get = _get


async def _get(url: str, **options: Any) -> Any:
    response = await kopf_api.request(method="get", url=url, **options)
    async with response:
        answer = _loads(await response.read())
    kind = answer.get("kind", "")
    if kind.endswith(_LIST):
        _listed.get()(kind.removesuffix(_LIST))
    return answer


def _loads(data: bytes | str) -> Any:
    return deep_json.loads(data, trimmed)
