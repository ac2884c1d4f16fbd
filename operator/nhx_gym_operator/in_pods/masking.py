"""Secrets are taken out of all that is printed, logged or said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

SHORTEST = 8
"""A shorter value is no credential, and masking it would only make text unreadable."""
MASKED = "***"


class Mask:
    """Puts `***` in the place of each of `secrets`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one secret may be the beginning of another.
        self._secrets = sorted({secret for secret in secrets if secret}, key=lambda secret: (-len(secret), secret))
        # As variables of the environment are, which need not be UTF-8.
        self._encoded = [secret.encode(errors="surrogateescape") for secret in self._secrets]
        self.longest = max(map(len, self._encoded), default=0)
        """Bytes of the longest one."""

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASKED)
        return text

    def data(self, data: bytes) -> bytes:
        for secret in self._encoded:
            data = data.replace(secret, MASKED.encode())
        return data


def by_lines(secrets: Iterable[str]) -> Iterator[str]:
    """Of an environment's secrets what is long enough to be one. One with line breaks is printed as lines, each of
    which gives a part of it away."""
    parts = (part for secret in secrets for part in (secret, secret.strip(), *secret.splitlines()))
    return (part for part in parts if len(part) >= SHORTEST)


def by_words(secrets: Iterable[str]) -> Iterator[str]:
    """Each of the secrets that we send ourselves, and of one in several words (`Bearer …`) each that is long enough to
    be the credential: a server's answer may repeat what it was sent."""
    for secret in secrets:
        yield secret
        yield from (word for word in secret.split() if len(word) >= SHORTEST)
