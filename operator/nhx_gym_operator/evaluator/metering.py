"""Token usage of model answers: whole JSON bodies, and event streams as they pass."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import Field

from ..api.wire.endpoints import Latency, ModelUsage

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""An event larger than this passes unread: it is forwarded, but neither metered nor understood."""

MAX_TOKENS = 10**12
"""A call that states more tokens than this states nonsense, which no status could hold."""

_LAST_EVENTS = frozenset({"response.completed", "response.failed", "response.incomplete", "error"})
"""Events after which a Responses stream ends (OpenAI API reference, "Streaming events")."""

_STEP = 1.2
"""Of one duration to the next that are told apart: the middle of a step is less than a tenth from its ends."""
_SHORTEST_S = 0.001

Tokens = tuple[int, int, int]
"""Input, output, total."""


def usage_of(answer: object) -> Tokens | None:
    """Tokens in an answer's `usage`, in either vocabulary: that of chat completions
    (`prompt_tokens`) or that of responses (`input_tokens`). None if it states none."""
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    if not isinstance(usage, Mapping):
        return None
    sent = _count(usage, "prompt_tokens", "input_tokens")
    received = _count(usage, "completion_tokens", "output_tokens")
    if sent is None and received is None:
        return None
    total = _count(usage, "total_tokens")
    return sent or 0, received or 0, total if total is not None else (sent or 0) + (received or 0)


def failed_response(answer: object) -> tuple[str, str] | None:
    """Code and message of an answer that came as a success and says that it failed: a response with the status
    `failed`, or an error without anything else. None for every other."""
    if not isinstance(answer, Mapping):
        return "not_an_object", f"a JSON {type(answer).__name__} instead of an object"
    error = answer.get("error")
    if answer.get("status") != "failed" and (not error or "choices" in answer or "output" in answer):
        return None
    told = error if isinstance(error, Mapping) else {"message": error or "no reason given"}
    return str(told.get("code") or told.get("type") or "no code"), str(told.get("message") or error)


class End(StrEnum):
    """How a call ended: the counter of `ModelUsage` that it is in."""

    ANSWERED = "calls"
    FAILED = "failed_calls"
    ABORTED = "aborted_calls"


@dataclass(slots=True)
class CallCost:
    """One call as it is counted, once for its model and once for its rollout."""

    end: End | None = None
    """None: not yet known, or the call was never made."""
    tokens: Tokens | None = None
    """As far as the model stated any."""
    in_part: bool = False
    """Whether a part of an answer came, of which only a call that failed needs to say so."""
    seconds: float = 0.0


def count(usage: ModelUsage, cost: CallCost) -> None:
    """Add one call, if it was made."""
    if cost.end is None:
        return
    setattr(usage, cost.end, getattr(usage, cost.end) + 1)
    usage.seconds = round(usage.seconds + cost.seconds, 3)
    if cost.tokens is not None:
        usage.input_tokens += cost.tokens[0]
        usage.output_tokens += cost.tokens[1]
        usage.total_tokens += cost.tokens[2]
    elif cost.in_part or cost.end is not End.FAILED:
        usage.unmetered_calls += 1


def sums(some: Mapping[str, Mapping[str, Any]], more: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Two tries of one rollout together: by model, counters of `ModelUsage` without what is nothing."""
    return {
        model: {
            name: round(some.get(model, {}).get(name, 0) + more.get(model, {}).get(name, 0), 3)
            for name in (*some.get(model, {}), *more.get(model, {}))
        }
        for model in (*some, *more)
    }


class Counted(ModelUsage):
    """What was counted for one model over all attempts, as the evaluator keeps it."""

    answered_seconds: float = 0.0
    longest_seconds: float = 0.0
    by_duration: dict[int, int] = Field(default_factory=dict)
    """How many answered calls took up to `_STEP ** n` seconds, and longer than the step before, by `n`."""

    def add(self, cost: CallCost) -> None:
        count(self, cost)
        if cost.end is End.ANSWERED:
            self.answered_seconds = round(self.answered_seconds + cost.seconds, 3)
            self.longest_seconds = max(self.longest_seconds, round(cost.seconds, 3))
            step = math.ceil(math.log(max(cost.seconds, _SHORTEST_S), _STEP))
            self.by_duration[step] = self.by_duration.get(step, 0) + 1

    def shown(self) -> ModelUsage:
        """As others are told."""
        usage = ModelUsage(**self.model_dump(include=set(ModelUsage.model_fields)))
        number = sum(self.by_duration.values())
        if number:
            usage.latency_seconds = Latency(
                mean=round(self.answered_seconds / number, 3),
                p50=self._within(math.ceil(number * 0.5)),
                p99=self._within(math.ceil(number * 0.99)),
                max=self.longest_seconds,
            )
        return usage

    def _within(self, number: int) -> float:
        """Seconds that so many of the calls did not exceed: the middle of the step at which that is reached."""
        seen = 0
        for step, calls in sorted(self.by_duration.items()):
            seen += calls
            if seen >= number:
                return min(self.longest_seconds, float(f"{_STEP ** (step - 0.5):.3g}"))
        return self.longest_seconds


def calls_of(usage: ModelUsage) -> int:
    """All calls that were made, however they ended."""
    return usage.calls + usage.failed_calls + usage.aborted_calls


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS:
            return value
    return None


class EventStream:
    """Follows a server-sent event stream while its bytes are passed on.

    `complete` tells whether the stream said that it was done: `[DONE]`, a choice's finish reason, or a
    final event of the Responses API. A stream that just ends has not.
    """

    def __init__(self) -> None:
        self.tokens: Tokens | None = None
        self.complete = False
        self.failed: tuple[str, str] | None = None
        """Code and message, if an event said that the answer failed."""
        self.answer: dict[str, Any] = {}
        """What events say of the answer as a whole: `model` and `system_fingerprint`."""
        self._line = bytearray()
        self._event: list[bytes] = []
        self._event_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes, cut anywhere."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._line += line
            self._end_line()
        self._line += rest
        if len(self._line) > MAX_EVENT_BYTES:
            self._line.clear()

    def finish(self) -> None:
        """The stream has ended; a last event needs no blank line after it."""
        self._end_line()
        self._end_event()

    def _end_line(self) -> None:
        line = bytes(self._line).rstrip(b"\r")
        self._line.clear()
        if not line:
            self._end_event()
        elif line.startswith(b"data:") and self._event_bytes + len(line) <= MAX_EVENT_BYTES:
            self._event.append(line[5:].removeprefix(b" "))
            self._event_bytes += len(line)

    def _end_event(self) -> None:
        data, self._event, self._event_bytes = b"\n".join(self._event), [], 0
        if data == b"[DONE]":
            self.complete = True
        elif data:
            try:
                self._read(json.loads(data))
            except (ValueError, RecursionError):
                return

    def _read(self, event: object) -> None:
        if not isinstance(event, Mapping):
            return
        nested = event.get("response")
        self.tokens = usage_of(event) or usage_of(nested) or self.tokens
        for about in (event, nested):
            if isinstance(about, Mapping):
                named = {name: about[name] for name in ("model", "system_fingerprint") if about.get(name)}
                self.answer |= named
        choices = event.get("choices")
        finished = isinstance(choices, list) and any(
            isinstance(choice, Mapping) and choice.get("finish_reason") for choice in choices
        )
        if event.get("type") == "error":
            self.failed = failed_response({"error": event.get("error") or event})
        elif event.get("error"):
            self.failed = failed_response({"error": event["error"]})
        elif event.get("type") == "response.failed":
            self.failed = failed_response(nested) or ("no code", "no reason given")
        if finished or self.failed or event.get("type") in _LAST_EVENTS:
            self.complete = True
