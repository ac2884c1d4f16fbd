"""Times as Kubernetes writes them."""

from __future__ import annotations

from datetime import datetime


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
