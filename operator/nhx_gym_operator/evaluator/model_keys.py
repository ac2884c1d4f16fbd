"""API keys of the job's models, as files that only this container has."""

from __future__ import annotations

from pathlib import Path

from ..api.wire.plans import ModelRoute


class ModelKeyError(ValueError):
    """A key that cannot be sent in a header. Says which, and never the key."""


class ModelKeys:
    """`<directory>/<model name>/api-key`, looked at with every call so that a rotated key takes effect."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}
        """By model name: which file it was, and the key in it."""

    def read(self, route: ModelRoute) -> str | None:
        """The key without surrounding white space, or None if the model needs none."""
        if not route.has_api_key:
            return None
        file = self._directory / route.name / "api-key"
        where = f"the API key of model {route.name!r} (spec.models[name={route.name}].apiKey.secretKeyRef)"
        try:
            found = file.stat()
            version = found.st_ino, found.st_mtime_ns, found.st_size
            if route.name in self._known and self._known[route.name][0] == version:
                return self._known[route.name][1]
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ModelKeyError(f"{where} cannot be read: {type(error).__name__}") from error
        if not key:
            raise ModelKeyError(f"{where} is empty")
        if not (key.isascii() and key.isprintable()):
            raise ModelKeyError(
                f"{where} holds a line break or another character that no HTTP header can carry;"
                " store the key alone, on one line"
            )
        self._known[route.name] = version, key
        return key

    def was_trimmed(self, route: ModelRoute) -> bool:
        """Whether the stored key had white space around it."""
        if not route.has_api_key:
            return False
        stored = (self._directory / route.name / "api-key").read_text(encoding="utf-8")
        return stored != stored.strip()
