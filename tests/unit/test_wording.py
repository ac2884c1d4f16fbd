"""The words that messages share."""

from __future__ import annotations

import pytest

from nhx_gym_operator.api.wording import some_of


@pytest.mark.parametrize(
    ("names", "words"), [("", ""), ("a", "a"), ("ab", "a, b"), ("abc", "a, b and 1 more"), ("abcde", "a, b and 3 more")]
)
def test_of_many_names_the_first_are_said_and_the_others_counted(names: str, words: str) -> None:
    assert some_of(list(names), 2) == words
