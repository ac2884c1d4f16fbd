"""A command of this program that runs beside another one and is shown when its turn comes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import paths, report

PAUSE_SECONDS = 0.2
END_SECONDS = 20


class Beside:
    """`python3 -m devcluster ARGUMENTS` from now on, with its output in a log. Used with `with`: what still runs at the
    end of the block is ended."""

    def __init__(self, *arguments: str):
        self._words = f"python3 -m devcluster {' '.join(arguments)}"
        self.log = paths.cache_dir() / "log" / f"{'-'.join(arguments)}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "devcluster", *arguments],
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # one signal then reaches all that it has started
            )

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *_) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if self._child.poll() is not None:
                return
            os.killpg(self._child.pid, sign)
            try:
                self._child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                continue

    def show(self) -> None:
        """Prints what it has said and goes on saying, until it ends. Raises DevclusterError if it failed."""
        with self.log.open(errors="replace") as said:
            while True:
                ended = self._child.poll() is not None
                sys.stdout.write(said.read())
                sys.stdout.flush()
                if ended:
                    break
                time.sleep(PAUSE_SECONDS)
        if self._child.returncode:
            raise report.DevclusterError(f"`{self._words}` failed; the reason stands above and in {self.log}")
