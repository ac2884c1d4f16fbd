"""What the person at the terminal sees, and the one error this program raises on purpose."""

import contextlib
import subprocess
import time
from pathlib import Path

HEARTBEAT_SECONDS = 30


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


def tail(path: Path, lines: int = 15) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def failure(what: str, log: Path) -> DevclusterError:
    return DevclusterError(f"{what}\n--- last lines of {log}\n{tail(log)}")


def run_logged(argv: list[str], log: Path, what: str, seconds: float, **options) -> None:
    """Runs a long command with its output in `log`, and shows every half minute that it lives."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("wb") as output:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options)
        try:
            while True:
                try:
                    code = child.wait(timeout=HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    elapsed = time.monotonic() - began
                    if elapsed > seconds:
                        raise failure(f"{what} took longer than {seconds / 60:.0f} min", log) from None
                    print(f"{elapsed:.0f} s ... ", end="", flush=True)
        except BaseException:
            child.kill()
            child.wait()
            raise
    if code != 0:
        raise failure(f"{what} failed with exit code {code}", log)


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


def answer(argv: list[str], seconds: float, **options) -> subprocess.CompletedProcess:
    """Runs a short command; one that hangs counts as one that failed."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no answer within {seconds:.0f} s")
