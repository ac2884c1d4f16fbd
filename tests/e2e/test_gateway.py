"""The model gateway in front of a real model server: what comes is what the server sent.

Tool calls are compared before the scripted one, in `tests/unit/test_gateway_golden.py`: this model was taught none.
"""

from __future__ import annotations

import json
import re
from typing import Any

from e2e.gateway_reference import REQUESTS
from e2e.scenarios import Answer

NEW_EACH_TIME = re.compile(rb'"(id|created|timings)":("[^"]*"|[0-9.]+|\{[^{}]*\})')
"""Of llama.cpp's answers: an id, the time, and how long it took."""
KEEP_ALIVE = b":\n\n"
"""What it sends while it thinks for long."""


def test_a_real_models_answers_pass_byte_for_byte(golden_answers: dict[str, tuple[Answer, Answer]]) -> None:
    assert golden_answers.keys() == REQUESTS.keys()
    for name, (direct, through) in golden_answers.items():
        assert (through.status, through.type) == (direct.status, direct.type) and direct.status == 200, name
        assert _lasting(through) == _lasting(direct), name
        # What differs from call to call is the smaller part: the rest was compared.
        assert len(_lasting(direct)) > 150, direct.body


def _lasting(answer: Answer) -> bytes:
    return NEW_EACH_TIME.sub(b"", answer.body.replace(KEEP_ALIVE, b""))


def test_the_answers_that_were_compared_are_a_models(golden_answers: dict[str, tuple[Answer, Answer]]) -> None:
    said = {name: direct.body for name, (direct, _) in golden_answers.items()}
    text = _message(said["whole"])["content"]
    assert len(text.split()) > 2
    assert _streamed(said["stream"], "content") == text
    thoughts = _message(said["reasoning"])["reasoning_content"]
    assert thoughts and _streamed(said["reasoning stream"], "reasoning_content") == thoughts
    assert re.search(rb'"logprob":-[0-9]+\.[0-9]{5}', said["probabilities"]), "no number of many digits was passed on"


def _message(body: bytes) -> dict[str, Any]:
    return json.loads(body)["choices"][0]["message"]


def _streamed(body: bytes, field: str) -> str:
    """What events say of a field, one after the other."""
    events = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]" and len(events) > 4
    return "".join(choice["delta"].get(field) or "" for event in events[:-1] for choice in json.loads(event)["choices"])
