"""A container's termination message: the file that the kubelet copies into the pod's status."""

from __future__ import annotations

import logging
from pathlib import Path

from ..api.wire.reports import TERMINATION_LIMIT_BYTES, TERMINATION_LOG

log = logging.getLogger(__name__)


def write_termination_message(words: str | bytes, file: Path | None = None) -> None:
    """Write it, as much as the kubelet keeps, in place of what was there. Trouble is logged, not raised: it must not
    cost what the container has done."""
    said = words.encode() if isinstance(words, str) else words
    kept = said[:TERMINATION_LIMIT_BYTES].decode(errors="ignore")
    file = file or Path(TERMINATION_LOG)
    try:
        file.write_text(kept, encoding="utf-8")
    except OSError as error:
        log.error("%s cannot be written: %s", file, error)
