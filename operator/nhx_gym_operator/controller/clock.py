"""Times as the API server writes them: UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(start: datetime, moment: datetime) -> float:
    return (moment - start).total_seconds()
