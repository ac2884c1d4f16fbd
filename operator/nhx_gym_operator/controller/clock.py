"""Times as the API server writes them: UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def now() -> datetime:
    return datetime.now(UTC)


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_end(seconds_left: float, moment: datetime) -> str:
    """When so many seconds from now are over. Of a wait that began at a whole second it is the same at every look."""
    return format_time(moment + timedelta(seconds=seconds_left + 0.001))


def seconds_since(start: datetime, moment: datetime) -> float:
    return (moment - start).total_seconds()
