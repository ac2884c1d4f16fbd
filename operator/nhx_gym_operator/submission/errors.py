"""What a submission is refused with, before anything reaches the cluster."""

from __future__ import annotations

from ..client.errors import UsageProblem


class SubmissionError(UsageProblem, ValueError):
    """Names the field, in the words of what the user wrote, and what to change."""


class UnsubmittableRunnerError(SubmissionError):
    """A live runner that no manifest can describe. Names the runner and its field.

    The name is that of the page evals/agent-eval/gym-runner.mdx; no package has it.
    """
