"""Starting daemons, knowing them again, and stopping exactly those.

A process id alone proves nothing: ids are reused, and after a crash the records may be missing or stale. So a record
holds the boot and the start time as well, and everything started here carries a mark in its environment, which its
children (containerd's shims) inherit.
"""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from . import packages, paths, report
from .settings import OWNER_VARIABLE

PROC = Path("/proc")


@dataclasses.dataclass(frozen=True)
class Identity:
    pid: int
    started: int  # in clock ticks since boot
    boot: str

    def is_alive(self) -> bool:
        return self.boot == boot_id() and start_of(self.pid) == self.started


@dataclasses.dataclass(frozen=True)
class Daemon:
    name: str
    argv: tuple[str, ...]
    is_healthy: Callable[[], bool]
    files: Mapping[Path, str] = dataclasses.field(default_factory=dict)
    path: tuple[Path, ...] = ()  # folders in which it looks for commands, before the system's
    deadline: float = 60

    @property
    def log(self) -> Path:
        return paths.log_dir() / f"{self.name}.log"

    def digest(self) -> str:
        """Differs when the running process would have to be replaced by a new one."""
        content = [*self.argv, *map(str, self.path), *(f"{path}\0{text}" for path, text in sorted(self.files.items()))]
        return hashlib.sha256("\0".join(content).encode()).hexdigest()[:16]


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_of(pid: int) -> int | None:
    """The start time of a live process; None when there is none or only its corpse waits to be reaped."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return parse_start(stat)


def parse_start(stat: str) -> int | None:
    fields = stat.rpartition(")")[2].split()  # the command's name may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])


def _record(name: str) -> Path:
    return paths.run_dir() / "processes" / f"{name}.json"


def recorded(name: str) -> dict:
    try:
        return json.loads(_record(name).read_text())
    except (OSError, ValueError):
        return {}


def identity(name: str) -> Identity | None:
    known = recorded(name)
    return Identity(known["pid"], known["started"], known["boot"]) if known else None


def is_alive(name: str) -> bool:
    who = identity(name)
    return bool(who and who.is_alive())


def is_current(daemon: Daemon) -> bool:
    return is_alive(daemon.name) and recorded(daemon.name).get("digest") == daemon.digest()


def ensure(daemon: Daemon) -> bool:
    """Whether it had to be started."""
    if is_current(daemon):
        report.wait_until(f"{daemon.name} to answer", daemon.is_healthy, daemon.deadline, daemon.log)
        return False
    stop(daemon.name)
    with report.step(f"starting {daemon.name}"):
        start(daemon)
    return True


def start(daemon: Daemon) -> None:
    for path, text in daemon.files.items():
        write(path, text)
    daemon.log.parent.mkdir(parents=True, exist_ok=True)
    search = ":".join([*map(str, daemon.path), packages.SYSTEM_PATH])
    with daemon.log.open("ab") as log:
        child = subprocess.Popen(
            daemon.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd="/",
            # Nothing else of the caller's environment: no proxy, no kubeconfig, no Go setting.
            env={"PATH": search, "HOME": "/root", OWNER_VARIABLE: str(paths.state_dir())},
            start_new_session=True,
        )
    started = start_of(child.pid)
    record = {"pid": child.pid, "started": started, "boot": boot_id(), "digest": daemon.digest(), "since": time.time()}
    write(_record(daemon.name), json.dumps(record))

    def answers() -> bool:
        if child.poll() is not None:
            raise report.failure(f"{daemon.name} ended at once with exit code {child.returncode}", daemon.log)
        return daemon.is_healthy()

    report.wait_until(f"{daemon.name} to answer", answers, daemon.deadline, daemon.log)


def write(path: Path, text: str) -> None:
    """Never leaves half a file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.replace(path)


def stop(name: str) -> None:
    who = identity(name)
    if who:
        end([who], seconds=10)
    _record(name).unlink(missing_ok=True)


def end(those: list[Identity], seconds: float) -> None:
    """Asks, waits, then kills; each signal goes only to a process that is still the one meant."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10)):
        left = [who for who in those if who.is_alive()]
        for who in left:
            try:
                os.kill(who.pid, number)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + patience
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = [who for who in left if who.is_alive()]
        if not left:
            return
    raise report.DevclusterError(f"processes {[who.pid for who in left]} do not end, not even by SIGKILL")


def all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def identify(pid: int) -> Identity | None:
    started = start_of(pid)
    return None if started is None else Identity(pid, started, boot_id())


def marked() -> list[Identity]:
    """Everything that was started here and still lives, recorded or not."""
    mark = f"{OWNER_VARIABLE}={paths.state_dir()}".encode()
    found = []
    for pid in all_pids():
        try:
            environment = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0") and (who := identify(pid)):
            found.append(who)
    return found
