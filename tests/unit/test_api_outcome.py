"""The outcome in a termination message: it always fits, and what was dropped is said."""

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nhx_gym_operator.api.outcome import MAX_DECODED_BYTES, OutcomeError, decode_outcome, encode_outcome
from nhx_gym_operator.api.wire.endpoints import EgressUse, Progress, Stage
from nhx_gym_operator.api.wire.reports import TERMINATION_LIMIT_BYTES, Aggregate, Outcome


def outcome(**changes):
    progress = Progress(stage=Stage.DONE, attempt=1, done=10, total=10, mean_reward=0.8)
    return Outcome(**({"state": "Complete", "progress": progress} | changes))


def aggregates(count):
    numbers = random.Random(7)
    statistics = ("value", "mean", "min", "max", "median", "std_dev", "sample_std_dev")
    return [
        Aggregate(
            name=f"runner.gym.metric-{n}",
            kind="range",
            unit="gym",
            count=10,
            **{name: numbers.random() for name in statistics},
        )
        for n in range(count)
    ]


def test_a_small_outcome_is_plain_json_and_comes_back_whole():
    small = outcome(aggregates=aggregates(3), versions={"nemo-gym": "0.5.0"}, degraded=["x"])
    encoded = encode_outcome(small)
    assert encoded.startswith(b"{")
    assert decode_outcome(encoded) == decode_outcome(encoded.decode()) == small


def test_a_larger_outcome_is_compressed_and_comes_back_whole():
    larger = outcome(aggregates=aggregates(25))
    encoded = encode_outcome(larger)
    assert encoded.startswith(b"z1:") and len(encoded) <= TERMINATION_LIMIT_BYTES
    assert decode_outcome(encoded) == larger


def test_what_does_not_fit_is_dropped_from_the_end_and_counted():
    decoded = decode_outcome(encode_outcome(outcome(aggregates=aggregates(200), aggregates_dropped=5)))
    kept = len(decoded.aggregates)
    assert 25 < kept <= 64
    assert decoded.aggregates == aggregates(200)[:kept]
    assert decoded.aggregates_dropped == 205 - kept


@given(st.text(max_size=20_000), st.lists(st.text(max_size=3000), max_size=4))
def test_texts_of_any_length_fit(message, warnings):
    encoded = encode_outcome(outcome(message=message, warnings=warnings, degraded=warnings, aggregates=aggregates(4)))
    assert len(encoded) <= TERMINATION_LIMIT_BYTES
    assert decode_outcome(encoded).state == "Complete"


def test_a_message_that_would_grow_without_bound_is_refused():
    bomb = b"z1:" + base64.b64encode(zlib.compress(b"0" * (MAX_DECODED_BYTES + 1)))
    with pytest.raises(OutcomeError, match="more than 65536 bytes"):
        decode_outcome(bomb)


@pytest.mark.parametrize("message", ["", "Traceback (most recent call last)", "z1:%%%", "z1:" + "A" * 8, "{}", "[1]"])
def test_a_message_without_an_outcome_is_refused(message):
    with pytest.raises(OutcomeError):
        decode_outcome(message)


def test_an_outcome_in_any_script_fits():
    numbers = random.Random(1)

    def text(length):
        return "".join(chr(numbers.randrange(0x10000, 0x10FFFF)) for _ in range(length))

    outcome = Outcome(
        state="Failed",
        reason="EvaluationFailed",
        message=text(1500),
        degraded=[text(1500)],
        warnings=[text(300)],
        progress=Progress(
            stage=Stage.DONE,
            attempt=1,
            message=text(500),
            egress=EgressUse(
                requests=9, refused=1, passed={random.Random(n).randbytes(125).hex(): n for n in range(8)}
            ),
        ),
        aggregates=[Aggregate(name=text(256), kind="scalar", unit="gym")],
        versions={text(64): text(64) for _ in range(24)},
        host_kernel=text(200),
        environment_digest=f"sha256:{'0' * 64}",
    )
    encoded = encode_outcome(outcome)
    assert len(encoded) <= TERMINATION_LIMIT_BYTES
    decoded = decode_outcome(encoded)
    assert decoded.progress.egress.requests == 9
    assert decoded.message and outcome.message.startswith(decoded.message)
