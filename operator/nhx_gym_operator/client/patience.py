"""Bearing with a cluster that is away for a while: an API server that restarts is no reason to stop waiting."""

from __future__ import annotations

import time

from .errors import KubectlError, NotFound, Refused, UserError

PATIENCE_SECONDS = 120.0


class Patience:
    """Of one wait. A clear no is an answer, and ends it at once."""

    def __init__(self) -> None:
        self._since: float | None = None

    def bear(self, error: UserError) -> None:
        """Raises the error if asking again is of no use: the cluster said no, or has been away for too long."""
        self._since = self._since or time.monotonic()
        clear = isinstance(error, NotFound | Refused) or (
            isinstance(error, KubectlError) and (error.refused or error.not_found)
        )
        if clear or time.monotonic() - self._since > PATIENCE_SECONDS:
            raise error

    def answered(self) -> None:
        self._since = None
