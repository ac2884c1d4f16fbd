"""What goes wrong on the user's side, told in the user's words: what is wrong, where, and what to change."""

from __future__ import annotations

import re

_LOG_LINE = re.compile(r"[EFIW]\d{4} \d\d:\d\d:\d\d\.\d+ ")
"""How a line of kubectl's own log begins, of which it writes several before it says what is wrong."""
_NO_NAMESPACE = re.compile(r'namespaces "([^"]+)" not found')


class UserError(Exception):
    """Shown to the user as it is. Notes on it (`add_note`) are further lines."""


class UsageProblem(UserError):
    """What the user wrote cannot be used, and nothing was asked of the cluster."""


class NotFound(UserError):
    """What was asked for is not there: a job, or its results, or its logs."""


class Refused(UserError):
    """The API server said no: the object is not valid, or the user lacks a right."""


class TimedOut(UserError):
    """What was waited for did not come in the time that the user gave."""


class KubectlError(UserError):
    """kubectl ended with an error. `stderr` holds its words."""

    def __init__(self, arguments: tuple[str, ...], stderr: str):
        lines = stderr.strip().splitlines()
        said = [line for line in lines if not _LOG_LINE.match(line)]
        self.stderr = "\n".join(said or lines).removeprefix("error: ")
        super().__init__(f"kubectl {' '.join(arguments[:3])} failed: {self.stderr or 'it gave no reason'}")

    @property
    def not_found(self) -> bool:
        return "(NotFound)" in self.stderr

    @property
    def forbidden(self) -> bool:
        return "(Forbidden)" in self.stderr

    @property
    def already_exists(self) -> bool:
        return "(AlreadyExists)" in self.stderr

    @property
    def kind_unknown(self) -> bool:
        """The cluster has no such kind of object."""
        return "doesn't have a resource type" in self.stderr or "no matches for kind" in self.stderr

    @property
    def missing_namespace(self) -> str | None:
        """The namespace that something was to be made in, and that is not there."""
        found = _NO_NAMESPACE.search(self.stderr)
        return found[1] if found else None

    @property
    def refused(self) -> bool:
        """The server's answer will be the same next time."""
        words = ("(Invalid)", "(BadRequest)", " is invalid: ", "strict decoding error", "does not match the namespace")
        return self.forbidden or self.already_exists or any(word in self.stderr for word in words)
