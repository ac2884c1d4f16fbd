"""How many values a text holds is known before it is parsed, and cheaply, whatever the text is."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nhx_gym_operator.evaluator import memory
from nhx_gym_operator.evaluator.memory import json_values

MANY = 1_000_000
MIB = 1 << 20
TEXTS = st.text(st.sampled_from('\\"[{,:}]ax\n\u00e4'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def marks(value: Any) -> int:
    """Brackets, commas and colons that a value is written with."""
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(marks, value))
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(1 + marks(each) for each in value.values())
    return 0


@given(VALUES, st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_values_are_counted_outside_of_texts_wherever_these_are_cut(value: Any, chunk: int) -> None:
    text = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_CHUNK", chunk)
        assert json_values(text, MANY) in (marks(value), marks(value) + 1)
        assert json_values(bytearray(text), MANY) == json_values(text, MANY)


@pytest.mark.parametrize(
    "text",
    [b"[" * MIB, b"[[]," * MIB, b'{"a":1,' * MIB, b'["",' * MIB, b'"' * 4 * MIB],
    ids=["brackets", "lists", "entries", "texts", "quotes"],
)
def test_more_values_than_are_taken_are_told_whatever_they_are(text: bytes) -> None:
    assert json_values(text, MANY) > MANY


@pytest.mark.parametrize(
    "piece",
    [b"so, it said: [no] ", b"\\n", b'\\"', b"\\\\", b"\\u00e4,", b'", "', b'"'],
    ids=["prose", "line breaks", "escaped quotes", "backslashes", "escaped letters", "words", "quotes"],
)
def test_thirty_mib_take_no_longer_than_a_moment(piece: bytes) -> None:
    text = b'{"a": "' + piece * (30 * MIB // len(piece)) + b'"}'
    started = time.process_time()
    json_values(text, 2 * MANY)
    assert time.process_time() - started < 1.0
