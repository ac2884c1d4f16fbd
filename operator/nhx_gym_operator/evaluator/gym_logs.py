"""What Gym printed, as messages and the bundle show it: the last lines in a message, all of it in `gym_run/`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ENV_LOG = "gym_env.log"
"""Output of Gym's servers ("gym_env.log for startup", gym-runner.mdx), in both placements."""
EVAL_LOGS = ("gym_eval.stdout.log", "gym_eval.stderr.log")
VALIDATE_LOG = "gym_validate.log"

_LINES, _WIDTH, _CHARACTERS = 15, 300, 900
_READ_BYTES = 16 * 1024
_TAKEN_PORT = "address already in use"


@dataclass(frozen=True)
class GymEnd:
    """How Gym ended: the log to read, its last lines, and how many of its processes had to be killed."""

    file: str
    lines: tuple[str, ...] = ()
    killed: int = 0


def with_log(message: str, file: str, lines: Iterable[str]) -> str:
    """A message with the log that explains it and its last lines, as many as a status has room for."""
    lines = list(lines)
    last = ending(lines)
    message = "; ".join([message, *_told_before(lines, last)])
    return f"{message}; gym_run/{file} ends:\n{last}" if last else f"{message}; see gym_run/{file}"


def _told_before(lines: Iterable[str], last: str) -> list[str]:
    """The line on a port that is taken, where others came after it: Gym goes on as if nothing was wrong."""
    told = (line.strip()[:_WIDTH] for line in lines if _TAKEN_PORT in line)
    return [line for line in told if line not in last][:1]


def ending(lines: Iterable[str]) -> str:
    kept: deque[str] = deque()
    room = _CHARACTERS
    for line in reversed(list(lines)[-_LINES:]):
        room -= len(line[:_WIDTH]) + 1
        if room < 0:
            break
        kept.appendleft(line[:_WIDTH])
    return "\n".join(kept)


def last_lines(file: Path) -> tuple[str, ...]:
    """The last lines of a file that are not blank; none if it is not there."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _READ_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-_LINES:]


def host_log(ordinal: int) -> str:
    """Name of a host's log in `gym_run/`: Gym's own for the first."""
    return f"gym_env.host-{ordinal}.log" if ordinal else ENV_LOG
