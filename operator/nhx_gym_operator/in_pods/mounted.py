"""Secrets that are mounted as files or come as variables: read, and refused by their field and never by their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


class SecretError(ValueError):
    """A secret that is not there, or that no request can carry. Says which by its field."""


@dataclass(frozen=True)
class MountedSecret:
    """A secret's text."""

    text: str
    trimmed: bool
    """Whether white space around it was left out: people store keys with the line end that their editor adds."""


def read_secret(file: Path, field: str) -> MountedSecret:
    """`field` is how a user names it. Raises `SecretError`."""
    try:
        stored = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"{field} cannot be read: {type(error).__name__}") from None
    text = stored.strip()
    if not text:
        raise SecretError(f"{field} is empty")
    if not (text.isascii() and text.isprintable()):
        raise SecretError(
            f"{field} holds a line break or another character that no request can carry; store the value alone, on one "
            "line"
        )
    return MountedSecret(text, text != stored)


def trimmed_variables(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Those of the named variables that hold one line with white space around it, without that. What has several lines,
    as a certificate has, stays as it was stored."""
    texts = {name: environment.get(name, "").strip() for name in names}
    return {name: text for name, text in texts.items() if len(text.splitlines()) == 1 and text != environment[name]}
