"""JSON that Python's own reader cannot follow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nhx_gym_operator.api import deep_json

SHALLOW = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\[]{}\n, é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='k"\\[{}'), inner, max_size=3),
    max_leaves=12,
)


def levels(value: Any) -> int:
    count = 0
    while isinstance(value, list | dict):
        value = value[-1] if isinstance(value, list) else value["a"]
        count += 1
    return count


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ('[1,{"a":', "}]")])
def test_what_is_too_deep_is_cut_and_what_stands_around_it_is_kept(opened: str, closed: str) -> None:
    deep = opened * 20_000 + "7" + closed * 20_000
    before, cut, after = deep_json.loads(f'["x", {deep}, {{"b": "]}}"}}]')
    assert (before, after) == ("x", {"b": "]}"})
    assert 64 < levels(cut) <= deep_json.KEPT_LEVELS


@settings(deadline=None)
@given(SHALLOW, SHALLOW)
def test_everything_beside_a_deep_value_is_read_as_ever(before: Any, after: Any) -> None:
    text = f"[{json.dumps(before)}, {'[' * 20_000}{']' * 20_000}, {json.dumps(after)}]"
    read = deep_json.loads(text.encode())
    assert (read[0], read[2]) == (before, after)


def test_text_that_is_no_json_is_refused_as_ever() -> None:
    with pytest.raises(ValueError):
        deep_json.loads("[" * 20_000)
    with pytest.raises(ValueError):
        deep_json.loads("{")
