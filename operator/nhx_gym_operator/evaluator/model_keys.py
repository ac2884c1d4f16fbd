"""API keys of the job's models, as files that only this container has."""

from __future__ import annotations

import os
from pathlib import Path

from ..api.models import model_field
from ..api.wire.mounts import MODEL_KEY_FILE
from ..api.wire.plans import ModelRoute
from ..in_pods.mounted import MountedSecret, SecretError, read_secret


class ModelKeys:
    """`<directory>/<model name>/api-key`, looked at with every call so that a rotated key takes effect."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, str] = {}
        """By model name. A path costs more to make than to look at."""
        self._known: dict[str, tuple[tuple[int, int, int], MountedSecret]] = {}
        """By model name: which file it was, and the key in it."""

    def read(self, route: ModelRoute) -> str | None:
        """The key without surrounding white space, or None if the model needs none. Raises `SecretError`."""
        return self._read(route).text if route.has_api_key else None

    def was_trimmed(self, route: ModelRoute) -> bool:
        """Whether the stored key had white space around it. Raises `SecretError`."""
        return route.has_api_key and self._read(route).trimmed

    def _read(self, route: ModelRoute) -> MountedSecret:
        file = self._files.get(route.name)
        if file is None:
            file = self._files[route.name] = str(self._directory / route.name / MODEL_KEY_FILE)
        try:
            found = os.stat(file)
        except OSError as error:
            raise SecretError(f"{_field(route)} cannot be read: {type(error).__name__}") from None
        version = found.st_ino, found.st_mtime_ns, found.st_size
        known = self._known.get(route.name)
        if known is None or known[0] != version:
            known = self._known[route.name] = version, read_secret(Path(file), _field(route))
        return known[1]


def _field(route: ModelRoute) -> str:
    return f"the API key of model {route.name!r} ({model_field(route.name)}.apiKey.secretKeyRef)"
