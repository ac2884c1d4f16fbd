"""What the person at the terminal sees, and the one error this program raises on purpose."""

import contextlib
import time
from pathlib import Path


class DevclusterError(Exception):
    """Says what is wrong, where, and what to change; printed without a traceback."""


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def step(text: str):
    """Prints the step and, on the same line, how long it took."""
    print(f"{text} ... ", end="", flush=True)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"{time.monotonic() - began:.1f} s", flush=True)


def tail(path: Path) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-15:])


def failure(what: str, log: Path) -> DevclusterError:
    return DevclusterError(f"{what}\n--- last lines of {log}\n{tail(log)}")


def wait_until(what: str, check, seconds: float, log: Path | None = None, pause: float = 0.2):
    """Returns check()'s first true value; after `seconds` the error says what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            text = f"waited {seconds:.0f} s for {what}"
            raise failure(text, log) if log else DevclusterError(text)
        time.sleep(pause)
