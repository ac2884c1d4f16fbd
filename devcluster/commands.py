"""Commands that are run and waited for, each within a time of its own."""

import subprocess
import time
from pathlib import Path

from .report import failure

HEARTBEAT_SECONDS = 30


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


def answer(argv: list[str], seconds: float, **options) -> subprocess.CompletedProcess:
    """Runs a short command; one that hangs counts as one that failed."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no answer within {seconds:.0f} s")
