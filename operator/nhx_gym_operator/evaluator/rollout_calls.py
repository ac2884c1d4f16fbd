"""Which rollout each model call belongs to, and what a call without an answer makes of it.

NeMo Gym 0.5.0 sends no rollout id to the model: the prefix `/ng-rollout/<task>-<rollout>` under which its agents call a
model server is stripped by that server (`_CaptureMiddleware` in `nemo_gym/base_responses_api_model.py`), and no header
carries it on. So a call is told apart, best first:

1. By `ROLLOUT_HEADER`, with which `in_gym/sitecustomize.py` makes the model server pass the id on. It comes from where
   untrusted code runs, so it counts only for a rollout that is under way at that very caller.
2. By being of the only rollout that was under way at the caller while the call ran.
3. By the mark that the gateway puts into each error. Every Gym server repeats the body of a failed inner call in its
   own (`exception_handling_middleware` in `nemo_gym/server_utils.py`), up to the answer of the agent's `/run`; and of a
   call whose failure an agent swallowed, Gym's capture in the result holds it.

A failed call that none of these tells apart leaves a doubt about each reward that the same caller earned meanwhile.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..api.conditions import ConditionType, NoticeReason
from ..api.wire.endpoints import ModelUsage, Notice
from ..api.wire.reports import FailureClass
from .metering import CallCost, count
from .rollouts import MAX_FAILURE_MESSAGE, Failure, RolloutKey

_MARK = re.compile(r"nhx-call-[0-9a-f]{12}")
_ID = re.compile(r"(\d{1,9})-(\d{1,9})")
"""How Gym names a rollout (`maybe_rollout_id_from_run_body` in `nemo_gym/rollout_correlation.py`)."""
NOT_MADE = frozenset({FailureClass.ENVIRONMENT, FailureClass.BUDGET})
"""Classes of calls that never reach a model, and are no failure of it."""
_REMEMBERED = 20_000
_MAX_NOTICE = 500


@dataclass(frozen=True)
class FailedCall:
    """One call that the gateway gave up, with the model server's own words."""

    model: str
    failure_class: FailureClass
    message: str

    @property
    def failure(self) -> Failure:
        """What it makes of its rollout."""
        return Failure(self.failure_class, f"model {self.model}: {self.message}"[:MAX_FAILURE_MESSAGE])


@dataclass(slots=True)
class Call:
    """A call that is under way. `caller` is whose token it came with, `claimed` the rollout that it names."""

    model: str
    caller: int
    claimed: RolloutKey | None
    began: int


class Ended(NamedTuple):
    """What a rollout's model calls say at its end."""

    spoiled_by: FailedCall | None
    """The call that failed for good, if one did."""
    usage: dict[str, ModelUsage]
    """What its calls cost, by model; only of those that could be told apart."""


@dataclass(slots=True)
class _Rollout:
    caller: int
    began: int
    usage: dict[str, ModelUsage] = field(default_factory=dict)
    """Over all tries."""
    failed: dict[tuple[str, bytes], tuple[int, FailedCall]] = field(default_factory=dict)
    """By model and request; with when it failed."""


@dataclass(slots=True)
class _Unplaced:
    caller: int
    at: int
    call: FailedCall


class RolloutCalls:
    """The rollouts that are under way, the calls that failed, and which of these spoiled which of those."""

    def __init__(self) -> None:
        self._clock = 0
        self._rollouts: dict[RolloutKey, _Rollout] = {}
        self._at: dict[int, set[RolloutKey]] = {}
        """Rollouts under way by caller."""
        self._changed: dict[int, int] = {}
        """When a rollout last began or ended at a caller."""
        self._marks: OrderedDict[str, FailedCall] = OrderedDict()
        self._unplaced: OrderedDict[str, _Unplaced] = OrderedDict()
        self._doubts: OrderedDict[str, FailedCall] = OrderedDict()

    def rollout_began(self, key: RolloutKey, caller: int) -> None:
        """It was sent. What an earlier try of it had of failures is forgotten with that try, its cost is not."""
        earlier = self._leave(key)
        now = self._tick()
        self._rollouts[key] = _Rollout(caller, now, earlier.usage if earlier else {})
        self._at.setdefault(caller, set()).add(key)
        self._changed[caller] = now

    def rollout_ended(self, key: RolloutKey, answer: Mapping[str, Any] | Failure, *, rewarded: bool) -> Ended:
        """`answer` is what came of the rollout, and `rewarded` whether it would count."""
        marked = self._marked_in(answer) if self._unplaced or self._doubts else None
        rollout = self._leave(key)
        if rollout is None:
            return Ended(marked, {})
        spoiled = next((call for _, call in rollout.failed.values()), None) or marked
        if spoiled is None and rewarded:
            self._doubt(rollout)
        return Ended(spoiled, rollout.usage)

    def began(self, model: str, caller: int, rollout_id: str) -> Call:
        """A call arrived that names this rollout; an empty or odd id is none."""
        match = _ID.fullmatch(rollout_id)
        return Call(model, caller, RolloutKey(int(match[1]), int(match[2])) if match else None, self._tick())

    def ended(self, call: Call, cost: CallCost) -> None:
        """It was made and has ended, one way or the other: all of its cost is its rollout's, or nothing of it."""
        rollout = self._rollout_of(call)
        if rollout is not None:
            count(rollout.usage.setdefault(call.model, ModelUsage()), cost)

    def answered(self, call: Call, body: bytes) -> None:
        """It has its answer. The same request of the same rollout, sent again after it failed, makes good for that."""
        rollout = self._rollout_of(call)
        if rollout is None or not rollout.failed:
            return
        request = _request(call, body)
        if request in rollout.failed and rollout.failed[request][0] < call.began:
            del rollout.failed[request]

    def failed(self, call: Call, body: bytes, what: FailedCall) -> str:
        """It will have none. Returns the mark to put into the error that Gym gets."""
        mark = f"nhx-call-{secrets.token_hex(6)}"
        _remember(self._marks, mark, what)
        rollout = self._rollout_of(call)
        now = self._tick()
        if rollout is not None:
            rollout.failed.setdefault(_request(call, body), (now, what))
        elif self._at.get(call.caller):
            forgotten = _remember(self._unplaced, mark, _Unplaced(call.caller, now, what))
            if forgotten is not None:
                _remember(self._doubts, forgotten[0], forgotten[1].call)
        return mark

    def behind(self, text: str) -> FailedCall | None:
        """The failed call that an error text of Gym comes from, if any."""
        found = None
        for mark in _MARK.findall(text):
            found = found or self._marks.get(mark)
            self._unplaced.pop(mark, None)
            self._doubts.pop(mark, None)
        return found

    def notices(self) -> list[Notice]:
        """What the job's status has to say: that calls failed which nothing told apart, while a rollout that may have
        made them earned a reward."""
        if not self._doubts:
            return []
        last = next(reversed(self._doubts.values()))
        message = (
            f"{len(self._doubts)} model calls failed, and nothing told which rollouts made them: rewards of rollouts "
            f"that were under way may stand on an empty answer. Last: model {last.model} ({last.failure_class.value}): "
            f"{last.message}"
        )
        kind, reason = ConditionType.MODEL_CALLS_UNPLACED, NoticeReason.FAILED_CALLS_UNPLACED
        return [Notice(type=kind, reason=reason, message=message[:_MAX_NOTICE])]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _leave(self, key: RolloutKey) -> _Rollout | None:
        rollout = self._rollouts.pop(key, None)
        if rollout is not None:
            self._at[rollout.caller].discard(key)
            self._changed[rollout.caller] = self._tick()
        return rollout

    def _rollout_of(self, call: Call) -> _Rollout | None:
        if call.claimed is not None:
            rollout = self._rollouts.get(call.claimed)
            return rollout if rollout is not None and rollout.caller == call.caller else None
        under_way = self._at.get(call.caller, ())
        if len(under_way) != 1 or self._changed[call.caller] > call.began:
            return None
        return self._rollouts[next(iter(under_way))]

    def _marked_in(self, answer: Mapping[str, Any] | Failure) -> FailedCall | None:
        found = None
        waiting: list[Any] = [answer.message if isinstance(answer, Failure) else answer]
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                marks = [mark for mark in _MARK.findall(value) if mark in self._unplaced or mark in self._doubts]
                found = self.behind(" ".join(marks)) or found
            elif isinstance(value, Mapping):
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
        return found

    def _doubt(self, rollout: _Rollout) -> None:
        since = itertools.takewhile(lambda mark: self._unplaced[mark].at > rollout.began, reversed(self._unplaced))
        for mark in [mark for mark in since if self._unplaced[mark].caller == rollout.caller]:
            _remember(self._doubts, mark, self._unplaced.pop(mark).call)


def _request(call: Call, body: bytes) -> tuple[str, bytes]:
    return call.model, hashlib.sha256(body).digest()


def _remember[Value](kept: OrderedDict[str, Value], mark: str, value: Value) -> tuple[str, Value] | None:
    """Keep the value; returns what was dropped for it, the oldest."""
    kept[mark] = value
    return kept.popitem(last=False) if len(kept) > _REMEMBERED else None
