"""The options and arguments that commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from ..client.errors import UsageProblem
from .completion import files, job_names, namespaces
from .output import Output, TableOutput, parse_span

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", autocompletion=job_names)]
JobNames = Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs.", autocompletion=job_names)]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the job.", autocompletion=namespaces)
]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig to use.")]
Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", help="Path of the kubeconfig to use.", autocompletion=files)
]
How = Annotated[Output, typer.Option("--output", "-o", help="For people or for programs.")]
HowRows = Annotated[TableOutput, typer.Option("--output", "-o", help="For people or for programs.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SPAN", parser=parse_span, help="Wait no longer: 90s, 30m, 1h30m."),
]
Image = Annotated[
    str | None, typer.Option(help="Image of the pod that reads the claim, where the job no longer tells its own.")
]


def refuse_timeout_alone(timeout: float | None, wait: bool) -> None:
    if timeout is not None and not wait:
        raise UsageProblem("--timeout bounds what --wait waits for; give both, or neither.")
