"""Gym's own files below a bundle's `gym_run`: what they are called, and how rows stand in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

INPUT = "gym_input.jsonl"
"""The rows that Gym is given, as the SDK's own runner calls the file."""
ROLLOUTS = "rollouts.jsonl"
MATERIALIZED_INPUTS = "rollouts_materialized_inputs.jsonl"
FAILURES = "rollouts_failures.jsonl"
AGGREGATE_METRICS = "rollouts_aggregate_metrics.json"
"""What `gym eval run` of nemo_gym 0.5.0 makes of the name of its output, `ROLLOUTS` (`rollout_collection.py`)."""


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """As JSON Lines, one row held at a time. Raises `ValueError` for a number that JSON has no word for."""
    with file.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json_line(row))


def json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
