"""Reads `/progress` of running evaluators: over HTTP from the pods, never through the API server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

import aiohttp
from pydantic import ValidationError

from ..api.wire.endpoints import IMAGES_HEADER, Progress
from .observation import ProgressSource

INTERVAL_SECONDS = 2.0
TIMEOUT_SECONDS = 2.0
MAX_AT_ONCE = 16
MAX_ANSWER_BYTES = 64 * 1024

logger = logging.getLogger(__name__)


class ProgressPoller:
    """Asks every evaluator that it was told of, every `INTERVAL_SECONDS`. `changed` is called with a job's UID when its
    answer differs from the last one in more than what its models and its way out were used for. An evaluator that does
    not answer is asked again; its pod tells what has become of it."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._sources: dict[str, ProgressSource] = {}
        self._answers: dict[str, Progress] = {}
        self._lives: dict[str, str] = {}

    def latest(self, uid: str) -> Progress | None:
        return self._answers.get(uid)

    def life(self, uid: str) -> str:
        """Of which process (`ProgressSource.life`) the latest answer is."""
        return self._lives.get(uid, "")

    def watch(self, uid: str, source: ProgressSource | None) -> None:
        """Starts or, with None, ends asking. The last answer stays."""
        if source is None:
            self._sources.pop(uid, None)
        else:
            self._sources[uid] = source

    def forget(self, uid: str) -> None:
        self._sources.pop(uid, None)
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
            try:
                headers = {"Authorization": f"Bearer {source.token}", IMAGES_HEADER: json.dumps(dict(source.images))}
                async with session.get(source.url, headers=headers, allow_redirects=False) as response:
                    if response.status != 200:
                        logger.debug("%s answered %d", source.url, response.status)
                        return
                    body = await _bounded(response.content)
                answer = Progress.model_validate_json(body)
            except (aiohttp.ClientError, TimeoutError, ValidationError) as error:
                logger.debug("%s did not answer: %s", source.url, error)
                return
        if uid not in self._sources:
            return
        before, self._answers[uid] = self._answers.get(uid), answer
        life, self._lives[uid] = self._lives.get(uid), source.life
        if life != source.life or before is None or _without_counts(before) != _without_counts(answer):
            self._changed(uid)


def _without_counts(answer: Progress) -> Progress:
    """A status shows them as they were when a rollout ended."""
    return answer.model_copy(update={"usage": {}, "egress": None})


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """At most `MAX_ANSWER_BYTES`: a colocated evaluator shares its pod with code that is not ours."""
    body = b""
    while len(body) < MAX_ANSWER_BYTES and (chunk := await content.read(MAX_ANSWER_BYTES - len(body))):
        body += chunk
    return body
