"""What the body of a model call asks for. It is read once, and passes as it came."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...api.wire.plans import ModelRoute
from ...api.wire.reports import FailureClass
from .refusals import MAX_WORDS, Refused

_MODEL_CHOICE = re.compile(r"models|(.*_)?fallbacks?|route|model_list|user_config|api_base|base_url", re.IGNORECASE)
"""Fields by which some servers take another model or endpoint than `model` says: OpenRouter's `models` and `route`,
LiteLLM's `fallbacks`, `context_window_fallbacks`, `model_list`, `user_config`, `api_base`."""


def read_request(body: bytes, route: ModelRoute) -> Mapping[str, Any]:
    """The JSON object that a call sends. Raises `Refused` unless the one model that it asks for is the route's."""
    try:
        call = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise _not_passed("the request's body is not JSON") from error
    if not isinstance(call, Mapping):
        raise _not_passed("the request's body is not a JSON object")
    choice = next(_choices(call), None)
    if choice is not None:
        raise _not_passed(
            f"the request's {choice[:64]!r} would let the server choose a model; {route.model!r} is declared"
        )
    # Some servers take a key in any case for it.
    asked = [(key, value) for key, value in _entries(call) if key.lower() == "model"]
    if not asked:
        # OpenRouter would take the payer's default model, and others one of theirs.
        raise _not_passed(f"the request names no model, so that the server would choose one; ask for {route.model!r}")
    if asked != [("model", route.model)]:
        named = ", ".join(repr(value) if isinstance(value, str) else "no text" for _, value in asked)[:MAX_WORDS]
        raise _not_passed(f"model {named} was asked for, but {route.name!r} of this job is {route.model!r}")
    return call


def _not_passed(words: str) -> Refused:
    return Refused(422, FailureClass.ENVIRONMENT, words, "model_not_declared")


class _Twice(dict[str, Any]):
    """A JSON object in which a key stands twice. Of such keys servers read one or the other."""

    entries: list[tuple[str, Any]]
    """As they are written."""


def _object(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(entries)
    if len(found) < len(entries):
        found = _Twice(found)
        found.entries = entries
    return found


def _entries(value: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return value.entries if isinstance(value, _Twice) else value.items()


def _choices(call: Mapping[str, Any]) -> Iterator[str]:
    """Keys by which a server might take another model. What stands in `extra_body` some servers pass on as fields."""
    waiting, inner = [call], False
    while waiting:
        for key, value in _entries(waiting.pop()):
            if _MODEL_CHOICE.fullmatch(key) or (inner and key.lower() == "model"):
                yield key
            elif key.lower() == "extra_body" and isinstance(value, Mapping):
                waiting.append(value)
        inner = True
