"""What is masked of a secret, in pods of either kind."""

from __future__ import annotations

from nhx_gym_operator.in_pods.masking import Mask, by_lines, by_words
from nhx_gym_operator.in_pods.mounted import trimmed_variables


def test_a_secret_that_another_one_begins_with_gives_nothing_of_it_away() -> None:
    mask = Mask(["password", "password-and-more"])
    assert mask.text("password-and-more, password") == "***, ***"
    assert mask.data(b"password-and-more, password") == b"***, ***"
    assert mask.longest == len("password-and-more")


def test_no_secret_leaves_a_text_as_it_is() -> None:
    assert Mask([""]).text("a text") == "a text" and Mask(()).longest == 0


def test_a_secret_of_several_lines_is_masked_line_by_line_but_for_lines_that_are_none() -> None:
    mask = Mask(by_lines(["first-line-of-it\nmore\nlast-line-of-it", "short"]))
    assert mask.text("first-line-of-it more short last-line-of-it") == "*** more short ***"


def test_a_secret_that_is_used_without_the_white_space_around_it_is_masked_without_it_too() -> None:
    assert Mask(by_lines([" a-secret-value\r\n"])).text("TOOL=a-secret-value.") == "TOOL=***."


def test_of_a_header_with_a_credential_the_credential_alone_is_masked_too() -> None:
    mask = Mask(by_words(["Bearer abcdefgh12345", "key"]))
    assert mask.text("you sent abcdefgh12345, Bearer key") == "you sent ***, Bearer ***"


def test_a_variable_loses_white_space_around_one_line_and_no_line_of_several() -> None:
    stored = {"A": " value\r\n", "B": "value", "PEM": "one\ntwo\n", "BLANK": " \n", "OTHER": "value\n"}
    assert trimmed_variables(stored, ["A", "B", "PEM", "BLANK", "MISSING"]) == {"A": "value"}


def test_a_variable_that_is_no_utf_8_is_masked_as_its_bytes() -> None:
    secret = b"secret-\xff-value".decode(errors="surrogateescape")
    assert Mask([secret]).data(b"it is secret-\xff-value") == b"it is ***"
