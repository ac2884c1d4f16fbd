"""Shell completion: `kubectl_complete-nhx`, which kubectl's own completion asks about `kubectl nhx ...`.

kubectl (1.26 and newer) runs the executable of that name with the words after `nhx`, the last one incomplete. What it
prints is Cobra's: a line for each completion, its description after a tab, and `:` with a directive at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import typer
from click.shell_completion import CompletionItem, ShellComplete

from ..client.errors import UserError
from ..client.jobs import JOB_RESOURCE
from ..client.kubectl import Kubectl

FILES = 0
"""Cobra's ShellCompDirectiveDefault: the shell completes files if there is nothing else."""
NO_FILES = 4
"""Cobra's ShellCompDirectiveNoFileComp."""
_FILE_MARK = "\x1f"
_PATIENCE_SECONDS = 5.0
"""Nobody waits longer for a tab key."""


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    taken = ctx.params.get("jobs") or ()
    return [name for name in _names(ctx, incomplete, JOB_RESOURCE) if name not in taken]


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, "namespaces")


def files(incomplete: str) -> list[str]:
    """For what is a file of this machine, which the shell completes best."""
    return [incomplete + _FILE_MARK]


def _names(ctx: typer.Context, incomplete: str, resource: str) -> list[str]:
    """Nothing where the cluster does not answer: a tab key is no place for an error."""
    params = ctx.params
    try:
        kubectl = Kubectl.find(params.get("kubeconfig"), params.get("context"), params.get("namespace"))
        text = kubectl.text("get", resource, "--output=jsonpath={.items[*].metadata.name}", timeout=_PATIENCE_SECONDS)
    except UserError:
        return []
    return [name for name in text.split() if name.startswith(incomplete)]


def answer(words: Iterable[str]) -> list[str]:
    """The lines for the words after `kubectl nhx`; the last word is the incomplete one."""
    from .main import app

    *before, incomplete = list(words) or [""]
    found = ShellComplete(typer.main.get_command(app), {}, "kubectl nhx", "").get_completions(before, incomplete)
    if any(str(item.value).endswith(_FILE_MARK) for item in found):
        return [f":{FILES}"]
    return [*(_line(item) for item in found), f":{NO_FILES}"]


def _line(item: CompletionItem) -> str:
    words = " ".join((item.help or "").split())
    return f"{item.value}\t{words}" if words else str(item.value)


def main() -> None:
    print("\n".join(answer(sys.argv[1:])))


if __name__ == "__main__":
    main()
