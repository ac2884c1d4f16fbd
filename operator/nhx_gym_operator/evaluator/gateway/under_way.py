"""A model of the job, and a call to it that is under way: what is noted of it, whoever has it in hand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field

from aiohttp import web

from ..call_facts import CallFacts
from ..metering import CallCost, Counted, End, EventStream
from ..progress import utc
from ..rollout_calls import NOT_MADE, Call, FailedCall, RolloutCalls
from .endpoint import Doubt, Endpoint
from .refusals import Refused

_RETOLD_S = 60.0
_TOLD = 200

log = logging.getLogger(__name__)


@dataclass
class Model:
    endpoint: Endpoint
    slots: asyncio.Semaphore
    usage: Counted = field(default_factory=Counted)
    facts: CallFacts = field(default_factory=CallFacts)
    last_refusal: str = ""
    doubt: Doubt | None = None
    """What the first look at its endpoint left of doubts, until it has answered a call."""
    under_way: int = 0
    trouble: str = ""
    """What a try failed with since the last answer. Told for a minute: endpoints say something new each time."""
    _trouble_at: float = 0.0
    _silent_since: float = 0.0
    """When it was asked and had nothing to answer before, or answered last; Unix time."""

    def began(self) -> None:
        if not self.under_way and not self.trouble:
            self._silent_since = time.time()
        self.under_way += 1

    def answered(self, answer: object) -> None:
        self.facts.answer(answer)
        self.doubt = None
        self.trouble, self._silent_since = "", time.time()

    def failed(self, words: str) -> None:
        """One try did."""
        now = time.monotonic()
        if not self.trouble or now - self._trouble_at > _RETOLD_S:
            self.trouble, self._trouble_at = words, now

    def silence(self, shortest_s: float) -> str:
        """What is to be said of it, if for so long it was asked and has not answered; else nothing."""
        if time.time() - self._silent_since < shortest_s or not (self.under_way or self.trouble):
            return ""
        said = f": {self.trouble[:_TOLD]}" if self.trouble else ""
        return (
            f"model {self.name} has answered no call since {utc(self._silent_since)}{said}; "
            f"a call may take {self.endpoint.limit} s"
        )

    @property
    def name(self) -> str:
        return self.endpoint.route.name


@dataclass(eq=False)
class Asked:
    """One call on its way through the gateway. `calls` are told what becomes of it."""

    model: Model
    request: web.Request
    call: Call
    calls: RolloutCalls
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

    def answered(self, answer: object) -> None:
        """With this JSON value, or an event of a stream that speaks of the answer."""
        self.cost.end = End.ANSWERED
        self.model.answered(answer)
        self.calls.answered(self.call, self.body)

    def left(self, events: EventStream) -> None:
        """The caller has gone while it got a stream. Some do so as soon as they see its end."""
        if events.complete and events.failed is None:
            self.answered(events.answer)
        else:
            self.cost.end = End.ABORTED

    def given_up(self, refused: Refused) -> str:
        """It will have no answer. Returns the mark to put into the error that Gym gets."""
        if refused.failure_class not in NOT_MADE:
            self.model.last_refusal = refused.words
            self.model.failed(refused.words)
        log.warning("model %s gave no answer (%s): %s", self.model.name, refused.failure_class, refused.words)
        failed = FailedCall(self.model.name, refused.failure_class, refused.words)
        return self.calls.failed(self.call, self.body, failed)
