"""A real image registry over a folder: Debian's docker-registry, unpacked and not installed: no daemon stays."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "docker-registry"
FETCH_SECONDS = 120.0
START_SECONDS = 20.0


@contextlib.contextmanager
def image_registry(directory: Path) -> Iterator[str]:
    """HOST:PORT of a registry on this machine's loopback, without TLS and open to all, until the block ends."""
    port = _free_port()
    settings = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(directory / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    file, log = directory / "registry.yaml", directory / "registry.log"
    file.write_text(json.dumps(settings))
    with log.open("wb") as output:
        process = subprocess.Popen([_program(directory), "serve", str(file)], stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait(process, port, log)
            yield f"localhost:{port}"
        finally:
            process.terminate()
            process.wait(timeout=10)


def _program(directory: Path) -> str:
    installed = shutil.which(PACKAGE)
    if installed:
        return installed
    subprocess.run(
        ["apt-get", "download", PACKAGE], cwd=directory, check=True, capture_output=True, timeout=FETCH_SECONDS
    )
    (package,) = directory.glob(f"{PACKAGE}_*.deb")
    unpacked = directory / PACKAGE
    subprocess.run(["dpkg-deb", "--extract", str(package), str(unpacked)], check=True, timeout=FETCH_SECONDS)
    return str(unpacked / "usr/bin" / PACKAGE)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the registry ended: {log.read_text()}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"the registry did not listen within {START_SECONDS:g} s: {log.read_text()}")
