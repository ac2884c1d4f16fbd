"""`python -m nhx_gym_operator.evaluator run|stage|outcome|fetch`: the programs of an evaluator pod, and of pods that
read what it left."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

from ..api.wire.reports import NO_OUTCOME_EXIT_CODE, NO_RECORDS_EXIT_CODE
from ..in_pods.masking import Mask, by_words
from ..in_pods.termination_log import write_termination_message
from . import last_word
from .bucket import BucketError, BundleBucket
from .journal import job_of
from .last_word import KeptOutcomeError
from .plan import (
    Paths,
    PlanError,
    load_fetch_plan,
    load_outcome_plan,
    load_plan,
    load_source_secrets,
    load_stage_plan,
    load_tokens,
)
from .run import Evaluation
from .sources.errors import StagingError
from .stage import stage
from .untrusted import readable
from .upload import FIELD
from .verdict import unplanned_outcome

LOG_BYTES = 8 * 1024 * 1024
"""What is kept of the log, and as much again of what went before."""
MAX_RECORD = 16_000
"""Characters of one record."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger("nhx_gym_operator.evaluator")


class Readable(logging.Formatter):
    """Much of what is logged is an environment's word, also what the SDK logs: a record has a bounded length, acts upon
    no terminal and passes for no other record."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if len(text) > MAX_RECORD:
            text = f"{text[:MAX_RECORD]}... and {len(text) - MAX_RECORD} more characters"
        return readable(text).replace("\n", "\n    ")


def main(arguments: list[str] | None = None) -> int:
    """Run the command. The exit code is 0 if it did what it is for: the job is complete, the FileSet staged, an outcome
    or the bundle there. Else it is 1, and of `outcome` one of `api.wire.reports` where there is none."""
    parser = argparse.ArgumentParser(prog="python -m nhx_gym_operator.evaluator", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="run|stage|outcome|fetch")
    commands.add_parser("run", help="collect and score the job's rollouts").set_defaults(command=_run)
    commands.add_parser("stage", help="bring in and check one FileSet").set_defaults(command=_stage)
    commands.add_parser("outcome", help="say how an evaluator ended whose pod is gone").set_defaults(command=_outcome)
    commands.add_parser("fetch", help="copy a bundle from its bucket into a directory").set_defaults(command=_fetch)
    command: Callable[[Paths], int] = parser.parse_args(arguments).command
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Readable(_FORMAT))
    return command(Paths())


def _run(paths: Paths) -> int:
    try:
        plan = load_plan(os.environ)
        evaluation = Evaluation(plan, paths, load_tokens(paths.tokens, plan))
    except PlanError as error:
        log.error("%s", error)
        last_word.say(unplanned_outcome(str(error)), paths.termination_log)
        return 1
    evaluation.on_own_results = _log_beside_the_results(paths.log)
    log.info("job %s/%s, attempt %d, %s", plan.namespace, plan.job, plan.attempt, plan.placement)
    return asyncio.run(_until_signal(evaluation))


def _log_beside_the_results(file: Path) -> Callable[[], None]:
    """For those who look when the pod is gone. What is logged is held until the function returned is called, since the
    volume may be another job's. A job is not failed for want of it."""
    root, held = logging.getLogger(), MemoryHandler(0, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
    root.addHandler(held)

    def keep() -> None:
        root.removeHandler(held)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
        except OSError as error:
            log.warning("this log is not kept with the results: %s", error)
            return
        handler.setFormatter(Readable(_FORMAT))
        held.setTarget(handler)
        held.flush()
        root.addHandler(handler)

    return keep


async def _until_signal(evaluation: Evaluation) -> int:
    work = asyncio.create_task(evaluation.run())
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # Once: a second cancellation would interrupt the tidying up that the first began.
        if not work.cancelling():
            work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        outcome = await work
    except asyncio.CancelledError:
        log.warning("ended by a signal")
        return 1
    log.info("%s (%s): %s", outcome.state, outcome.reason, outcome.message)
    return 0 if outcome.state == "Complete" else 1


def _stage(paths: Paths) -> int:
    mask = Mask(())
    try:
        plan = load_stage_plan(os.environ)
        secrets = load_source_secrets(paths.source_secrets)
        mask = Mask(by_words(secrets.values()))
        _mask_in_logs(mask)
        staged = stage(plan, paths, secrets)
    except (StagingError, PlanError) as error:
        return _refuse(mask.text(str(error)), paths.termination_log)
    write_termination_message(staged.model_dump_json(), paths.termination_log)
    return 0


def _outcome(paths: Paths) -> int:
    """The outcome of an evaluator whose pod is gone, if it had come to one, as its own termination message was."""
    try:
        plan = load_outcome_plan(os.environ)
        kept = last_word.kept(paths.outcome, plan.uid, plan.attempt)
        if kept is not None and kept.is_final:
            log.info("%s (%s): %s", kept.state, kept.reason, kept.message)
            last_word.say(kept, paths.termination_log)
            return 0
        owner = job_of(paths.journal)
    except (PlanError, KeptOutcomeError, OSError) as error:
        return _refuse(str(error), paths.termination_log)
    if owner == plan.uid:
        _refuse("its results hold what it recorded, and no outcome", paths.termination_log)
        return NO_OUTCOME_EXIT_CODE
    _refuse("its results hold nothing of this job", paths.termination_log)
    return NO_RECORDS_EXIT_CODE


def _fetch(paths: Paths) -> int:
    try:
        plan = load_fetch_plan(os.environ)
        bucket = BundleBucket(plan.address, paths.object_store, FIELD)
        count = asyncio.run(bucket.get(plan.path, Path(plan.target)))
    except (PlanError, BucketError) as error:
        return _refuse(str(error), paths.termination_log)
    log.info("%d files", count)
    return 0


def _refuse(message: str, termination_log: Path) -> int:
    """Names of files and words of servers are in it, whoever chose them."""
    message = readable(message)
    print(message, file=sys.stderr)
    write_termination_message(message, termination_log)
    return 1


def _mask_in_logs(mask: Mask) -> None:
    class Masked(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.msg, record.args = mask.text(record.getMessage()), ()
            return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(Masked())


if __name__ == "__main__":
    sys.exit(main())
