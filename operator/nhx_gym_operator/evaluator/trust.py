"""Which certificates of other servers are trusted, and what is said of those that are not. All are verified, always."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp

Distrusted = aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError

_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
"""X509_V_ERR_… of OpenSSL's x509_vfy.h: an issuer that is not found, self-signed certificates, a chain of one."""


class NoCertificates(ValueError):
    """The file holds no certificates; says which field it is."""


def trust(ca_file: Path, field: str) -> ssl.SSLContext:
    """The system's authorities, and those in `ca_file` if it is there. `field` is the field above `certificates`."""
    context = ssl.create_default_context()
    if ca_file.is_file():
        try:
            context.load_verify_locations(ca_file)
        except ssl.SSLError as error:
            raise NoCertificates(f"{field}.certificates holds no PEM certificate: {error.reason}") from error
    return context


def distrust(error: Distrusted, field: str) -> str:
    """Why a server's certificate is not trusted, and the field to set."""
    cause = getattr(error, "certificate_error", None) or error
    if getattr(cause, "verify_code", None) in _UNKNOWN_AUTHORITY:
        advice = f"put that authority into a ConfigMap and name it in {field}.certificates"
        reason = f"its certificate is signed by an unknown authority ({cause.verify_message}); {advice}"
    else:
        reason = getattr(cause, "verify_message", "") or str(cause)
    return f"{error.host}:{error.port} cannot be trusted: {reason}"
