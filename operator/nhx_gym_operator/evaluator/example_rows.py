"""Whether a job's rows have what the example rows of its bundled resources server have.

A verifier that lacks what it compares with often scores 0 and says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from nhx_evals_sdk.agent_eval.tasks import AgentEvalTask

from ..api.bundled import PREFIX
from ..api.conditions import ConditionType, NoticeReason
from ..api.wire.endpoints import Notice
from ..api.wording import some_of

_BOOKKEEPING = frozenset({"agent_ref", "id", "uid", "uuid", "hash_id", "hashid", "responses_create_params"})
"""Keys that name a row or route it, or that every row was checked for: nothing to compare an answer with."""
_LISTED = 8


def lacking_fields(tasks: Sequence[AgentEvalTask], datasets: Path, resources_server: str) -> Notice | None:
    """The notice about top-level keys that every row of the server's `data/example.jsonl` below `datasets` has, and no
    row of `tasks`. None also for a server without example rows."""
    example = f"{PREFIX}{resources_server}/data/example.jsonl"
    had = set().union(*(task.metadata["gym_row_extras"] for task in tasks))
    lacking = sorted(_keys_of_every_row(datasets / example) - had - _BOOKKEEPING)
    if not lacking:
        return None
    names = some_of([f"`{key}`" for key in lacking], _LISTED)
    return Notice(
        type=ConditionType.ROW_FIELDS_MISSING,
        reason=NoticeReason.ROWS_UNLIKE_EXAMPLE,
        message=f"no row has {names}, which every row of {example} has; if the verifier reads them, rewards of 0 "
        "may come from the rows and not from the model",
    )


def _keys_of_every_row(file: Path) -> set[str]:
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
        return set.intersection(*(set(row) for row in rows)) if rows else set()
    except (OSError, ValueError):
        # An image of the user's own may have none, or anything.
        return set()
