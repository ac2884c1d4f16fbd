"""How each model was asked, and as what it answered: what the gateway sees pass, for the bundle's provenance."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..api.conditions import ConditionType, NoticeReason
from ..api.wire.endpoints import Notice
from .untrusted import readable, well_formed

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "seed",
    "n",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "reasoning_effort",
    "reasoning",
)
"""Fields of a model call that decide how an answer is drawn: those of the OpenAI API, and vLLM's `top_k`, `min_p` and
`repetition_penalty`."""
OTHER = "(other)"
_MAX_VALUES = 32
"""Distinct values of one field that are told apart. A seed may differ from call to call."""
_MAX_TEXT = 256
_NAMED = 3


@dataclass
class CallFacts:
    """What one model was asked with, and who says that it answered. Counts are calls."""

    sampling: dict[str, Counter[str]] = field(default_factory=dict)
    """Field to its values as JSON text. A call without the field is not counted: the server's default held."""
    answered: Counter[str] = field(default_factory=Counter)
    """The `model` that answers name."""
    fingerprints: Counter[str] = field(default_factory=Counter)
    """The `system_fingerprint` of answers that have one."""

    def asked(self, call: Mapping[str, Any]) -> None:
        """Note one call, by the object that its body is."""
        for name in SAMPLING:
            if call.get(name) is not None:
                _count(self.sampling.setdefault(name, Counter()), _text(call[name]))

    def answer(self, answer: object) -> None:
        """Note one answer, or an event of a stream that speaks of it."""
        if not isinstance(answer, Mapping):
            return
        for name, seen in (("model", self.answered), ("system_fingerprint", self.fingerprints)):
            if isinstance(answer.get(name), str) and answer[name]:
                _count(seen, answer[name])

    def shown(self) -> dict[str, Any]:
        return {
            "answeredAs": dict(self.answered),
            "systemFingerprints": dict(self.fingerprints),
            "sampling": {name: dict(values) for name, values in self.sampling.items()},
        }


def other_names(asked: Mapping[str, str], facts: Mapping[str, CallFacts]) -> list[Notice]:
    """The notice about models, by their name in the job, that answered under another name than `asked` for. A name that
    begins as the other one does is no other: a version of it, or a path to it."""
    words = [
        f"model {name}: asked for {model}, the endpoint answered as {readable(answered)}"
        for name, model in asked.items()
        for answered in (facts[name].answered if name in facts else ())
        if answered != OTHER and not _is_alike(model, answered)
    ]
    if not words:
        return []
    more = f"; and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    kind, reason = ConditionType.MODEL_ANSWERED_AS, NoticeReason.ANSWERED_UNDER_ANOTHER_NAME
    return [Notice(type=kind, reason=reason, message="; ".join(words[:_NAMED]) + more)]


def _is_alike(one: str, other: str) -> bool:
    first, second = (name.casefold().rstrip("/").rpartition("/")[2] for name in (one, other))
    return first.startswith(second) or second.startswith(first)


def _text(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return OTHER


def _count(seen: Counter[str], value: str) -> None:
    text = well_formed(value[:_MAX_TEXT])
    seen[text if text in seen or len(seen) < _MAX_VALUES else OTHER] += 1
