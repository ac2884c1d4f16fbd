"""The outcome of an evaluator where others read it: the kubelet at once, and whoever looks when the pod is gone."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pydantic import ValidationError

from ..api.outcome import encode_outcome
from ..api.wire.plans import EvaluatorPlan
from ..api.wire.reports import Outcome
from ..in_pods.termination_log import write_termination_message
from . import disk

log = logging.getLogger(__name__)


class KeptOutcome(Outcome):
    """`outcome.json` beside the results: in full, where a termination message may lack parts, and whose it is."""

    uid: str
    attempt: int


class KeptOutcomeError(RuntimeError):
    """What is kept cannot be read; says why."""


def say(outcome: Outcome, termination_log: Path) -> None:
    """Write the termination message."""
    write_termination_message(encode_outcome(outcome), termination_log)


def keep(outcome: Outcome, plan: EvaluatorPlan, file: Path) -> None:
    """Write the outcome to `file`, among results that must be this job's own. The whole of it is there, or what was
    there before; a final one survives a power cut. Trouble is logged, not raised."""
    kept = KeptOutcome(uid=plan.uid, attempt=plan.attempt, **dict(outcome))
    scratch = file.with_suffix(".tmp")
    try:
        with scratch.open("w", encoding="utf-8") as out:
            out.write(kept.model_dump_json(indent=2) + "\n")
            if outcome.is_final:
                out.flush()
                os.fsync(out.fileno())
        scratch.replace(file)
        if outcome.is_final:
            disk.sync_directory(file.parent)
    except OSError as error:
        log.error("cannot write %s: %s", file, error)


def kept(file: Path, uid: str, attempt: int) -> Outcome | None:
    """What this attempt of this job kept last; None if that is nothing. Raises `KeptOutcomeError`."""
    try:
        found = KeptOutcome.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = f"{error.error_count()} invalid fields" if isinstance(error, ValidationError) else error
        raise KeptOutcomeError(f"{file.name} cannot be read: {why}") from error
    if (found.uid, found.attempt) != (uid, attempt):
        return None
    return Outcome(**{name: getattr(found, name) for name in Outcome.model_fields})
