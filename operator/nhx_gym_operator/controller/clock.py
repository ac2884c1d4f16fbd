"""Times as the API server writes them: UTC, whole seconds."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

AGREED_SECONDS = 5.0
"""Clocks that differ by less are taken to agree: `Date` has whole seconds, and an answer takes its time."""

logger = logging.getLogger(__name__)


def now() -> datetime:
    return datetime.now(UTC)


class ServerClock:
    """The API server's time. Objects are dated by it: by a clock of its own that is wrong, an operator would end
    waits before their time, or never."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def heard(self, date: str | None) -> None:
        """Takes in the header `Date` of an answer that has just come."""
        try:
            ahead = parsedate_to_datetime(date or "") - now()
        except ValueError:
            return
        if abs(ahead.total_seconds()) < AGREED_SECONDS:
            ahead = timedelta(0)
        if abs((ahead - self._ahead).total_seconds()) < AGREED_SECONDS:
            return
        self._ahead = ahead
        words = "this operator's clock differs from the API server's by %.0f s; the server's is gone by"
        logger.warning(words, -ahead.total_seconds())

    def now(self) -> datetime:
        return now() + self._ahead


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_end(seconds_left: float, moment: datetime) -> str:
    """When so many seconds from now are over. Of a wait that began at a whole second it is the same at every look."""
    return format_time(moment + timedelta(seconds=seconds_left + 0.001))


def seconds_since(start: datetime, moment: datetime) -> float:
    return (moment - start).total_seconds()
