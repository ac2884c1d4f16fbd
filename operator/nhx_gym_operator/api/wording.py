"""How messages say what they all say alike."""

from __future__ import annotations

from collections.abc import Sequence


def some_of(names: Sequence[str], most: int) -> str:
    """The first `most`, and how many others there are: `a, b and 3 more`. Empty for none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def terminal_safe(text: str) -> str:
    """With what a terminal would act upon spelt out (`\\x1b`): a job's texts are whoever's that wrote it."""
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)
