"""How long the next try waits after one more loss."""

from __future__ import annotations

BASE_SECONDS = 10
LIMIT_SECONDS = 360
"""As batch/v1 Job: "an exponential back-off delay (10s, 20s, 40s ...) capped at six minutes"
(https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy)."""


def seconds_after(losses: int) -> int:
    """The pause after so many losses, 1 or more."""
    return min(LIMIT_SECONDS, BASE_SECONDS * 2 ** min(losses - 1, 16))
