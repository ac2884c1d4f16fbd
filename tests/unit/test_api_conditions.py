from __future__ import annotations

import re
from enum import StrEnum

import pytest

from nhx_gym_operator.api import conditions

ENUMS = [value for value in vars(conditions).values() if isinstance(value, type) and issubclass(value, StrEnum)]
ENUMS.remove(StrEnum)


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_a_reason_is_one_word_that_the_api_server_accepts_and_is_named_as_it_reads(enum: type[StrEnum]):
    for member in enum:
        assert re.fullmatch(r"[A-Z][A-Za-z]*", member.value)
        assert member.value.lower() == member.name.replace("_", "").lower()


def test_a_reason_stands_for_one_thing_within_the_job():
    own = [enum for enum in ENUMS if enum.__name__.endswith("Reason") and enum is not conditions.FileSetReason]
    words = [member.value for enum in own for member in enum]
    assert sorted(words) == sorted(set(words))


def test_the_condition_types_are_those_of_the_resource():
    assert [member.value for member in conditions.ConditionType] == [
        "Accepted",
        "Staged",
        "SandboxReady",
        "Running",
        "Suspended",
        "Complete",
        "RowsCollapsed",
        "PromptsMissing",
        "RowFieldsMissing",
        "ModelCallsUnplaced",
        "ModelAnsweredAs",
        "ModelInDoubt",
        "Degraded",
        "Failed",
    ]
