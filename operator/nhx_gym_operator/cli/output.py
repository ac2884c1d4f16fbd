"""How a command prints: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..api.wording import terminal_safe

_WIDE = 500


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


class TableOutput(StrEnum):
    """Of commands whose answer is rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def print_json(value: Any) -> None:
    typer.echo(readable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """One value a line, for a reader that follows."""
    typer.echo(readable_json(json.dumps(value, ensure_ascii=False)))


def readable_json(text: str) -> str:
    """The same JSON, with what a terminal would act upon spelt as JSON spells it (`\\u009b`)."""
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def console() -> Console:
    """On standard output. A pipe has no width: a table that another program reads is never folded."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDE)


def say(console: Console, line: str = "") -> None:
    """A line as it is: what a cluster says is no markup, and steers no terminal."""
    console.print(terminal_safe(line), markup=False, highlight=False, soft_wrap=True)


def first_line(text: str) -> str:
    """Of a text that is shown in full elsewhere: a quoted log would hide what stands around it."""
    first, _, rest = text.partition("\n")
    return f"{first} …" if rest else first


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, right: Iterable[str] = ()) -> Table:
    """As kubectl draws one. `right` names the columns of numbers."""
    numbers = set(right)
    drawn = Table(box=None, pad_edge=False, header_style="")
    for number, heading in enumerate(headings):
        drawn.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=number == 0)
    for row in rows:
        # Text, since names such as `pass@1[avg-of-2]` would be read as markup.
        drawn.add_row(*(Text(terminal_safe(cell)) for cell in row))
    return drawn


def number(value: float | None) -> str:
    # The API server stores 80.0 as 80.
    return "" if value is None else str(round(float(value), 4))


def age(timestamp: str | None, now: datetime | None = None) -> str:
    """`5s`, `12m`, `3h`, `4d` since an RFC 3339 time; empty without one."""
    return span(seconds_since(timestamp, now)) if timestamp else ""


def seconds_since(timestamp: str, now: datetime | None = None) -> float:
    return ((now or datetime.now(UTC)) - datetime.fromisoformat(timestamp)).total_seconds()


def span(seconds: float) -> str:
    """As kubectl shortens a duration: two units while that says more, `95s`, `5m30s`, `3h`, `4d`."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    return f"{hours}h" if hours < 48 else f"{hours // 24}d"


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"([0-9.]+)([smhd])")


def parse_span(text: str) -> float:
    """Seconds of `90`, `90s`, `30m`, `1h30m`. Raises `typer.BadParameter`."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    parts = _SPAN.findall(text)
    if not parts or "".join("".join(part) for part in parts) != text:
        raise typer.BadParameter(f"`{text}` is no duration; write for example 90s, 30m or 1h30m")
    try:
        return sum(float(amount) * _UNITS[unit] for amount, unit in parts)
    except ValueError:
        raise typer.BadParameter(f"`{text}` is no duration; write for example 90s, 30m or 1h30m") from None
