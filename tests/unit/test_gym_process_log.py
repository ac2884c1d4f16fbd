"""What a colocated Gym prints, whatever and however much it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nhx_gym_operator.evaluator.gym_process import MAX_LINE_BYTES, LogFile
from nhx_gym_operator.in_pods.masking import Mask

SECRET = "s3cr3t-of-this-job"


async def followed(log: LogFile, *chunks: bytes) -> bytes:
    stream = asyncio.StreamReader()
    work = asyncio.create_task(log.follow(stream))
    for chunk in chunks:
        stream.feed_data(chunk)
        await asyncio.sleep(0)
    stream.feed_eof()
    await work
    return log.path.read_bytes()


async def test_a_long_output_keeps_its_beginning_and_its_end_and_says_what_is_left_out(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gym_env.log", Mask([SECRET]), limit_bytes=1000)
    text = await followed(log, *(b"line %d\n" % number for number in range(5000)))
    assert text.startswith(b"line 0\nline 1\n") and text.endswith(b"line 4998\nline 4999\n")
    assert b"bytes are left out, but for these last lines" in text and len(text) < 3000


async def test_an_output_within_the_limit_is_kept_as_it_is(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gym_env.log", Mask([SECRET]), limit_bytes=1000)
    assert await followed(log, b"one\ntw", b"o\nthree") == b"one\ntwo\nthree"


async def test_a_line_without_an_end_fills_no_memory_and_hides_what_is_to_be_hidden(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gym_env.log", Mask([SECRET]))
    # The secret lies across every place at which the line may be cut.
    piece = (SECRET * 3 + "x").encode()
    text = await followed(log, *[piece * 1000] * (3 * MAX_LINE_BYTES // len(piece) // 1000 + 1))
    assert SECRET.encode() not in text and text.count(b"***") > 1000
    assert b"".join(text.split(b"***")).strip(b"x") == b""
    assert max(map(len, log.tail)) <= 4096


async def test_of_a_long_line_that_repeats_a_request_no_piece_is_kept(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gym_env.log", Mask([SECRET]))
    text = await followed(log, b"Request info: ", *[b"prompt " * 20_000] * 30, b"\nafter\n")
    assert text == b"after\n"
