"""The user's own kubectl, with the user's own rights: no credential is read here."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import Any

from ..api import deep_json
from .errors import KubectlError, UserError

CALL_TIMEOUT_SECONDS = 60.0
"""A single call that answers at once (get, create, delete) may take this long."""


@dataclass(frozen=True)
class Kubectl:
    program: str
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    own_session: bool = False

    @classmethod
    def find(cls, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None) -> Kubectl:
        """The kubectl named by the variable KUBECTL, else the one on PATH."""
        wanted = os.environ.get("KUBECTL") or "kubectl"
        program = shutil.which(wanted)
        if program is None:
            raise UserError(
                f"`{wanted}` is not an executable on PATH. Install kubectl, or set the variable KUBECTL to where it is."
            )
        return cls(program, kubeconfig, context, namespace)

    def in_namespace(self, namespace: str) -> Kubectl:
        return replace(self, namespace=namespace)

    def apart(self) -> Kubectl:
        """One that a terminal's Ctrl-C does not reach: for calls that are to end, whatever the user does meanwhile."""
        return replace(self, own_session=True)

    def command(self, *arguments: str) -> list[str]:
        """The flags come first, since everything after `--` of an exec belongs to the container."""
        flags = {"--kubeconfig": self.kubeconfig, "--context": self.context, "--namespace": self.namespace}
        return [self.program, *(f"{flag}={value}" for flag, value in flags.items() if value), *arguments]

    def text(self, *arguments: str, stdin: str | None = None, timeout: float = CALL_TIMEOUT_SECONDS) -> str:
        try:
            result = subprocess.run(
                self.command(*arguments),
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                start_new_session=self.own_session,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"kubectl {' '.join(arguments[:3])} gave no answer in {timeout:.0f} s. Is the cluster reachable?"
            ) from None
        if result.returncode:
            raise KubectlError(arguments, result.stderr)
        return result.stdout

    def json(self, *arguments: str, stdin: str | None = None) -> dict[str, Any]:
        text = self.text(*arguments, "--output=json", stdin=stdin)
        try:
            return deep_json.loads(text)
        except ValueError:
            raise UserError(
                f"kubectl {' '.join(arguments[:3])} answered with no JSON: {text[:200]!r}. Is {self.program} a kubectl?"
            ) from None

    def open(self, *arguments: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
        """A kubectl that keeps writing; its standard output is a pipe of bytes."""
        return subprocess.Popen(
            self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
