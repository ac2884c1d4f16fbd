"""Reads `/progress` of running evaluators: over HTTP from the pods, never through the API server."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable

import aiohttp
from pydantic import ValidationError

from ..api.wire.endpoints import IMAGES_HEADER, Progress
from .observation import ProgressSource

INTERVAL_SECONDS = 2.0
TIMEOUT_SECONDS = 2.0
MAX_AT_ONCE = 16
MAX_ANSWER_BYTES = 64 * 1024
SILENT_SECONDS = 30.0
"""Of asking without an answer, until that is said. Ours: longer than an evaluator takes that has much to do."""

logger = logging.getLogger(__name__)


class ProgressPoller:
    """Asks every evaluator that it was told of, every `INTERVAL_SECONDS`. `changed` is called with a job's UID when its
    answer differs from the last one in more than what its models and its way out were used for, and when it falls
    silent or answers again. An evaluator that does not answer is asked again; its pod tells what has become of it."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._sources: dict[str, ProgressSource] = {}
        self._answers: dict[str, Progress] = {}
        self._lives: dict[str, str] = {}
        self._unanswered: dict[str, float] = {}
        """Since when, by the monotonic clock."""
        self._silent: set[str] = set()

    def latest(self, uid: str) -> Progress | None:
        return self._answers.get(uid)

    def life(self, uid: str) -> str:
        """Of which process (`ProgressSource.life`) the latest answer is."""
        return self._lives.get(uid, "")

    def is_silent(self, uid: str) -> bool:
        """Whether the process that is asked has not answered for `SILENT_SECONDS`."""
        return uid in self._silent

    def watch(self, uid: str, source: ProgressSource | None) -> None:
        """Starts or, with None, ends asking. The last answer stays."""
        before = self._sources.pop(uid, None)
        if source is not None:
            self._sources[uid] = source
        if source is None or before is None or source.life != before.life:
            self._note_sign(uid)

    def forget(self, uid: str) -> None:
        self.watch(uid, None)
        self._answers.pop(uid, None)
        self._lives.pop(uid, None)

    async def run(self) -> None:
        """Never returns."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        slots = asyncio.Semaphore(MAX_AT_ONCE)
        # Proxies of the environment are for the world outside; a pod is reached directly.
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                asked = list(self._sources.items())
                await asyncio.gather(*(self._ask(session, slots, uid, source) for uid, source in asked))
                await asyncio.sleep(INTERVAL_SECONDS)

    async def _ask(
        self, session: aiohttp.ClientSession, slots: asyncio.Semaphore, uid: str, source: ProgressSource
    ) -> None:
        async with slots:
            answer = await _answer_of(session, source)
        if uid not in self._sources:
            return
        if answer is None:
            self._note_silence(uid)
            return
        spoke_again = self._note_sign(uid)
        before, self._answers[uid] = self._answers.get(uid), answer
        life, self._lives[uid] = self._lives.get(uid), source.life
        if spoke_again or life != source.life or before is None or _without_counts(before) != _without_counts(answer):
            self._changed(uid)

    def _note_silence(self, uid: str) -> None:
        since = self._unanswered.setdefault(uid, time.monotonic())
        if uid not in self._silent and time.monotonic() - since >= SILENT_SECONDS:
            self._silent.add(uid)
            self._changed(uid)

    def _note_sign(self, uid: str) -> bool:
        """Whether it had been silent."""
        self._unanswered.pop(uid, None)
        was_silent = uid in self._silent
        self._silent.discard(uid)
        return was_silent


async def _answer_of(session: aiohttp.ClientSession, source: ProgressSource) -> Progress | None:
    headers = {"Authorization": f"Bearer {source.token}", IMAGES_HEADER: json.dumps(dict(source.images))}
    try:
        async with session.get(source.url, headers=headers, allow_redirects=False) as response:
            if response.status == 200:
                return Progress.model_validate_json(await _bounded(response.content))
            logger.debug("%s answered %d", source.url, response.status)
    except (aiohttp.ClientError, TimeoutError, ValidationError) as error:
        logger.debug("%s did not answer: %s", source.url, error)
    return None


def _without_counts(answer: Progress) -> Progress:
    """A status shows them as they were when a rollout ended."""
    return answer.model_copy(update={"usage": {}, "egress": None})


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """At most `MAX_ANSWER_BYTES`: a colocated evaluator shares its pod with code that is not ours."""
    body = b""
    while len(body) < MAX_ANSWER_BYTES and (chunk := await content.read(MAX_ANSWER_BYTES - len(body))):
        body += chunk
    return body
