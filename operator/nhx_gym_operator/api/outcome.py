"""The evaluator's outcome, in and out of a container's termination message.

The kubelet keeps 4,096 bytes of one container's message (`terminationMessagePath` in the Kubernetes
documentation). An outcome that fits is plain JSON, so that `kubectl get pod -o yaml` can be read; a
larger one is compressed; one that is still too large loses parts in a fixed order and says so.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator

from pydantic import ValidationError

from .wire.reports import TERMINATION_LIMIT_BYTES, Aggregate, Outcome

MAX_AGGREGATES = 64
"""How many aggregates a job's status shows; the others are in the bundle."""
MAX_AGGREGATE_NAME = 256
"""Characters of an aggregate's name in a status. Gym's metrics are named by the environment's code."""
MAX_DECODED_BYTES = 64 * 1024
"""A compressed outcome that would grow beyond this is refused: the message comes from a container."""

REWARD_PREFIX = "gym_reward."
"""How the names of all aggregates of Gym's rewards begin, as the SDK's `GymRewardMetric` gives them."""
REWARD = f"{REWARD_PREFIX}reward"
"""The mean reward of all rollouts."""

STATISTICS = ("mean", "min", "max", "median", "std_dev", "sample_std_dev")
"""Fields of an aggregate that only a range has."""
_TRIMMED = re.compile(r"; (white space around [^;\n]+ was left out)")
_COMPRESSED_PREFIX = b"z1:"
_SHORT_TEXT = 500
_SHORTEST_TEXT = 100
"""Fits whatever the text is made of: a character beyond ASCII takes up to twelve bytes."""


def trimmed(what: str) -> str:
    """The warning that a secret was used without the white space that is stored around it."""
    return f"white space around {what} was left out"


def without_trimmed(message: str) -> tuple[str, list[str]]:
    """A condition's message, and those warnings that were put behind it."""
    return _TRIMMED.sub("", message), _TRIMMED.findall(message)


class OutcomeError(ValueError):
    """A termination message that holds no outcome; says what is wrong with it."""


def encode_outcome(outcome: Outcome) -> bytes:
    """The outcome as at most `TERMINATION_LIMIT_BYTES` bytes of ASCII.

    What does not fit is dropped in this order: aggregates from the last to the second, statistics of
    the first, warnings, package versions, long texts, which hosts were reached, notices, usage, the kernel, all but the
    beginning of texts, the last aggregate. `aggregates_dropped` counts the aggregates.
    """
    for candidate in _ever_smaller(outcome):
        encoded = _encode(candidate)
        if len(encoded) <= TERMINATION_LIMIT_BYTES:
            return encoded
    raise OutcomeError("an outcome without aggregates, warnings and versions exceeds the limit")


def decode_outcome(message: str | bytes) -> Outcome:
    """The outcome in a termination message. Raises `OutcomeError` if it holds none."""
    data = message.encode() if isinstance(message, str) else message
    if data.startswith(_COMPRESSED_PREFIX):
        data = _decompress(data[len(_COMPRESSED_PREFIX) :])
    try:
        return Outcome.model_validate_json(data)
    except ValidationError as error:
        raise OutcomeError(f"not an outcome: {error.error_count()} invalid fields") from error


def _encode(outcome: Outcome) -> bytes:
    plain = outcome.model_dump_json(exclude_defaults=True, ensure_ascii=True).encode()
    if len(plain) <= TERMINATION_LIMIT_BYTES:
        return plain
    return _COMPRESSED_PREFIX + base64.b64encode(zlib.compress(plain, level=9))


def _decompress(data: bytes) -> bytes:
    try:
        decompressor = zlib.decompressobj()
        plain = decompressor.decompress(base64.b64decode(data, validate=True), MAX_DECODED_BYTES + 1)
    except (binascii.Error, zlib.error) as error:
        raise OutcomeError(f"a compressed outcome that cannot be read: {error}") from error
    if len(plain) > MAX_DECODED_BYTES:
        raise OutcomeError(f"a compressed outcome of more than {MAX_DECODED_BYTES} bytes")
    return plain


def _ever_smaller(outcome: Outcome) -> Iterator[Outcome]:
    aggregates = outcome.aggregates[:MAX_AGGREGATES]
    dropped = outcome.aggregates_dropped + len(outcome.aggregates) - len(aggregates)
    for kept in range(len(aggregates), 0, -1):
        yield outcome.model_copy(
            update={
                "aggregates": aggregates[:kept],
                "aggregates_dropped": dropped + len(aggregates) - kept,
            }
        )
    first = [_without_statistics(aggregate) for aggregate in aggregates[:1]]
    smaller = outcome.model_copy(
        update={"aggregates": first, "aggregates_dropped": dropped + len(aggregates) - len(first)}
    )
    yield smaller
    egress = outcome.progress.egress and outcome.progress.egress.model_copy(update={"passed": {}})
    for update in (
        {"warnings": []},
        {"versions": {}},
        {"message": outcome.message[:_SHORT_TEXT]},
        {"degraded": [text[:_SHORT_TEXT] for text in outcome.degraded[:1]]},
        {"progress": outcome.progress.model_copy(update={"message": ""})},
        {"progress": outcome.progress.model_copy(update={"message": "", "egress": egress})},
        {"progress": outcome.progress.model_copy(update={"message": "", "egress": egress, "notices": []})},
        {"usage": {}},
        {"host_kernel": ""},
        {
            "message": outcome.message[:_SHORTEST_TEXT],
            "degraded": [text[:_SHORTEST_TEXT] for text in outcome.degraded[:1]],
        },
        {"aggregates": [], "aggregates_dropped": dropped + len(aggregates)},
    ):
        smaller = smaller.model_copy(update=update)
        yield smaller


def _without_statistics(aggregate: Aggregate) -> Aggregate:
    return aggregate.model_copy(update=dict.fromkeys(STATISTICS))
