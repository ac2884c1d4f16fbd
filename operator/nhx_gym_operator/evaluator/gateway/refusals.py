"""What it means that a model gave no answer: whether another try may have one, and what Gym gets if none does."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from functools import cache
from traceback import format_tb

import aiohttp
from aiohttp import web

from ...api.wire.reports import FailureClass
from ...in_pods.masking import MASKED
from ..retries import is_retried
from ..untrusted import well_formed

GIVEN_UP = 424
"""Failed Dependency: a status that neither Gym nor the openai client repeats."""

_PASSING_CODES = frozenset({"server_error", "rate_limit_exceeded"})
"""Codes of a failed response that another try may not have (OpenAI API reference, "The response object")."""
_STATUS_CODES = frozenset(map(str, range(400, 600)))
"""What OpenRouter has for a code."""
_GYM_REPEATS = frozenset({408, 409, 429})
_CONTEXT_LENGTH = re.compile(
    r"context[ _](length|size|window)|max_tokens must be at least 1|longer than the maximum model length"
    r"|prompt is too long|input token count .{0,200} exceeds"
    r"|`?inputs`? (must have less than|tokens \+ `?max_new_tokens)",
    re.IGNORECASE,
)
"""How OpenAI-compatible servers say that prompt and answer do not fit: OpenAI's `context_length_exceeded`, the messages
of vLLM that vllm_model's app.py lists, and those of SGLang, llama.cpp, TGI, Anthropic and Gemini."""
_CONTEXT_STATUSES = frozenset({400, 413, 422})
MAX_WORDS = 1000
_MAX_REFUSAL_BYTES = 256 * 1024
_WORDS_FROM = 32 * 1024
"""Characters at the beginning of a text in which its words are looked for: much less than is read of any."""

log = logging.getLogger(__name__)


class Refused(Exception):
    """The model did not answer. `status` and `code` are what Gym gets."""

    def __init__(self, status: int, failure_class: FailureClass, words: str, code: str = "model_call_failed") -> None:
        super().__init__(words)
        self.status = status
        self.failure_class = failure_class
        self.words = words
        self.code = code


class MayPass(Exception):
    """One try failed in a way that another try may not."""

    def __init__(self, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.headers = headers or {}


async def refusal(answer: aiohttp.ClientResponse, key: str | None) -> Refused | MayPass:
    """What a status that is no success means; of its body, only the first words are shown."""
    text = (await _beginning(answer)).decode("utf-8", errors="replace")
    words = f"HTTP {answer.status} from the model server: {words_of(text, key)}"
    if answer.status < 400:
        return Refused(GIVEN_UP, FailureClass.MODEL, f"{words} (redirects are not followed; fix baseUrl)")
    if answer.status in _CONTEXT_STATUSES and _CONTEXT_LENGTH.search(text):
        return Refused(422, FailureClass.CONTEXT, words, "context_length_exceeded")
    if is_retried(answer.status, answer.headers):
        return MayPass(words, answer.headers)
    if answer.status >= 500 or answer.status in _GYM_REPEATS:
        return Refused(GIVEN_UP, FailureClass.MODEL, words)
    return Refused(422 if answer.status == 400 else answer.status, FailureClass.MODEL, words)


def failed_answer(code: str, message: str, key: str | None) -> Refused | MayPass:
    """What an answer means that was sent as a success and says that it failed."""
    code, message = code[:_MAX_REFUSAL_BYTES], message[:_MAX_REFUSAL_BYTES]
    words = f"the model server's answer says that it failed: {words_of(message, key)} ({words_of(code, key)})"
    if _CONTEXT_LENGTH.search(f"{code} {message}"):
        return Refused(422, FailureClass.CONTEXT, words, "context_length_exceeded")
    passes = code in _PASSING_CODES or (code in _STATUS_CODES and is_retried(int(code), {}))
    return MayPass(words) if passes else Refused(GIVEN_UP, FailureClass.MODEL, words)


def final(failure: Refused | MayPass) -> Refused:
    """The failure of a call that can't be repeated."""
    return failure if isinstance(failure, Refused) else Refused(GIVEN_UP, FailureClass.TRANSIENT, str(failure))


def unforeseen(error: Exception) -> Refused:
    """Of an answer that the gateway is not made for: a failed call as any other. Its own words may hold the key."""
    log.error("an answer was not understood: %s\n%s", type(error).__name__, "".join(format_tb(error.__traceback__)))
    return Refused(GIVEN_UP, FailureClass.MODEL, f"the model server's answer is not understood: {type(error).__name__}")


def words_of(text: str, key: str | None) -> str:
    """The message in an error body, whatever its shape, without the key that its server was sent."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    # Before it is cut, which would leave a part of the key. Of a longer text than is read, a part may stand at the end.
    said = without(str(message or text), key)[:_WORDS_FROM]
    return well_formed(" ".join(said.split())[:MAX_WORDS]) or "no text"


def without(text: str, key: str | None) -> str:
    """What a server says, without the key that it was sent, however JSON spells it: some write `\\/` or `\\u002b`."""
    return _spellings(key).sub(MASKED, text) if key else text


@cache
def _spellings(key: str) -> re.Pattern[str]:
    """Of the job's own models, which are few."""
    return re.compile("".join(rf"(?:{re.escape(each)}|(?i:\\u{ord(each):04x})|\\{re.escape(each)})" for each in key))


def error_response(status: int, message: str, code: str) -> web.Response:
    """An error as OpenAI's API has it."""
    body = {"error": {"message": message, "type": "nhx_gateway", "code": code}}
    return web.json_response(body, status=status)


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    body = b""
    while more := await answer.content.read(_MAX_REFUSAL_BYTES - len(body)):
        body += more
    return body
