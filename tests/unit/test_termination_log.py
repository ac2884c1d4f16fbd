"""A container's termination message, whoever writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nhx_gym_operator.api.wire.reports import TERMINATION_LIMIT_BYTES
from nhx_gym_operator.in_pods.termination_log import write_termination_message


def test_what_the_kubelet_would_cut_is_cut_between_characters(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.write_text("what was said before")
    write_termination_message("x" + "ü" * TERMINATION_LIMIT_BYTES, file)
    assert file.read_text(encoding="utf-8") == "x" + "ü" * ((TERMINATION_LIMIT_BYTES - 1) // 2)


def test_a_message_that_cannot_be_written_is_logged_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_termination_message(b"last words", tmp_path / "absent" / "termination-log")
    assert "termination-log cannot be written" in caplog.text
