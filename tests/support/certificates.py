"""A certificate authority of a test's own, and a server's certificate signed by it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]


@dataclass(frozen=True)
class Certificates:
    """Files as PEM."""

    authority: Path
    certificate: Path
    key: Path


def private_authority(directory: Path, address: str = "127.0.0.1") -> Certificates:
    """For a server at an IPv4 address or of a name."""
    kind = "IP" if address.replace(".", "").isdecimal() else "DNS"
    made = Certificates(*(directory / name for name in ("authority.pem", "server.pem", "server.key")))
    authority_key = directory / "authority.key"
    _openssl(
        "-subj", "/CN=an authority of the tests", "-keyout", str(authority_key), "-out", str(made.authority),
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    _openssl(
        "-subj", f"/CN={address}", "-keyout", str(made.key), "-out", str(made.certificate),
        "-CA", str(made.authority), "-CAkey", str(authority_key),
        "-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"subjectAltName={kind}:{address}",
    )  # fmt: skip
    return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", "req", "-x509", *_KEY, *arguments], check=True, capture_output=True)
