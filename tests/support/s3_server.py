"""A real S3 server over a folder: versitygw, built by `python3 -m devcluster build s3`."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devcluster import modules

START_SECONDS = 20.0


@dataclass(frozen=True)
class S3Server:
    """Where it listens and who may read and write. A bucket is a folder of `root`, made by `mkdir`; its objects are
    the files below it."""

    endpoint: str
    region: str
    access_key_id: str
    secret_access_key: str
    root: Path

    def bucket(self, name: str) -> Path:
        """The folder of a bucket, made if need be."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        return folder


@contextlib.contextmanager
def s3_server(
    directory: Path, *, host: str = "127.0.0.1", certificate: Path | None = None, key: Path | None = None
) -> Iterator[S3Server]:
    """A server over `directory` until the block ends. With `host` set to the dev cluster's node address, pods reach
    it; with a certificate and its key it speaks TLS."""
    binary = modules.binary("versitygw")
    assert binary.is_file(), "the S3 server is not built: run `python3 -m devcluster build s3`"
    root, beside = directory / "buckets", directory / "metadata"
    for folder in (root, beside):
        folder.mkdir(parents=True, exist_ok=True)
    port = _free_port(host)
    tls = [f"--cert={certificate}", f"--key={key}"] if certificate else []
    scheme = "https" if certificate else "http"
    server = S3Server(f"{scheme}://{host}:{port}", "us-east-1", "tests", "not-a-secret-of-anybody", root)
    keys = [f"--access={server.access_key_id}", f"--secret={server.secret_access_key}", f"--region={server.region}"]
    # Beside the files: not every file system that tests run on has extended attributes.
    command = [str(binary), *keys, f"--port={host}:{port}", *tls, "posix", f"--sidecar={beside}", str(root)]
    with (directory / "s3.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(process, host, port, directory / "s3.log")
            yield server
        finally:
            process.terminate()
            process.wait(timeout=10)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return probe.getsockname()[1]


def _wait(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the S3 server ended: {log.read_text()}"
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"the S3 server did not listen within {START_SECONDS:g} s: {log.read_text()}")
