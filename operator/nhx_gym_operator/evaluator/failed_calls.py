"""Model calls that ended without an answer, and which rollout each of them cost.

NeMo Gym 0.5.0 sends no rollout id to the model: the correlation prefix `/ng-rollout/<id>` that agents
put into a model server's path is stripped by that server, and no header carries it on
(`nemo_gym/rollout_correlation.py`, `openai_utils.py`). But every Gym server repeats the body of a failed
inner call in its own error (`exception_handling_middleware` in `nemo_gym/server_utils.py`), up to the
answer of the agent's `/run`. So the gateway puts a mark into each error it returns, and a rollout whose
error text holds the mark was ended by that call.

What is not attributed: a call whose failure an agent swallowed. Such a rollout keeps its reward.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from nhx_gym_operator.api.wire import FailureClass

_MARK = re.compile(r"nhx-call-[0-9a-f]{12}")
_REMEMBERED = 20_000


@dataclass(frozen=True)
class FailedCall:
    """One call that the gateway gave up, with the model server's own words."""

    model: str
    failure_class: FailureClass
    message: str


class FailedCalls:
    """The most recent failed calls, by their mark."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, FailedCall] = OrderedDict()

    def add(self, call: FailedCall) -> str:
        """Remember a call; returns the mark to put into the error that Gym gets."""
        mark = f"nhx-call-{secrets.token_hex(6)}"
        self._calls[mark] = call
        while len(self._calls) > _REMEMBERED:
            self._calls.popitem(last=False)
        return mark

    def behind(self, text: str) -> FailedCall | None:
        """The failed call that an error text of Gym comes from, if any."""
        for mark in _MARK.findall(text):
            if mark in self._calls:
                return self._calls[mark]
        return None
