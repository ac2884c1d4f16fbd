"""The same requests to a real model server, directly and through the model gateway. Runs in the nhx-tasks image.

python gateway_reference.py BASE_URL MODEL    # a line of JSON for each request: its name, and both answers
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp

from nhx_gym_operator.api.wire.plans import ModelRoute
from nhx_gym_operator.evaluator.gateway import ModelGateway
from nhx_gym_operator.evaluator.http_api import Backends, make_app, serving
from nhx_gym_operator.evaluator.model_keys import ModelKeys
from nhx_gym_operator.evaluator.plan import Tokens
from nhx_gym_operator.evaluator.progress import ProgressState
from nhx_gym_operator.evaluator.rollout_calls import RolloutCalls

TOKEN = "a-host"
READY_SECONDS = 120
QUESTION = [{"role": "user", "content": "Name a colour, and say \u00e4 \U0001f600."}]
# Greedy, seeded, and computed anew each time: what it was asked before must not show.
FIXED: dict[str, Any] = {"temperature": 0, "seed": 7, "max_tokens": 8, "cache_prompt": False, "messages": QUESTION}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
# What the server takes for thoughts, by its chat template. Of themselves these weights write none.
THINKS = {"max_tokens": 24, "grammar": 'root ::= "<think>\\n" [a-z ]{1,9} "\\n</think>\\n" [a-z ]{1,9}'}
REQUESTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "probabilities": {"max_tokens": 3, "logprobs": True, "top_logprobs": 3},
    "stream": STREAM,
    "reasoning": THINKS,
    "reasoning stream": THINKS | STREAM,
}


async def main(base_url: str, model: str) -> None:
    # With a retry: this server closes a connection after a stream, while the next request may be on its way.
    route = ModelRoute(
        name="policy", base_url=base_url, model=model, timeout_seconds=120, max_retries=2, max_concurrent_calls=1
    )
    async with aiohttp.ClientSession() as session:
        gateway = ModelGateway([route], ModelKeys(Path("/none")), session, RolloutCalls())
        app = make_app(Backends(Tokens("progress", {0: TOKEN}, "local"), gateway, ProgressState(1)))
        await _until_ready(session, base_url)
        async with serving(app, host="127.0.0.1", port=0, canary_port=0) as port:
            for name, changes in REQUESTS.items():
                # Not as any library would write it: it is passed on to the byte.
                body = json.dumps({**FIXED, **changes, "model": model}, indent=1).encode()
                direct = await _ask(session, f"{base_url}/chat/completions", body)
                through = await _ask(session, f"http://127.0.0.1:{port}/models/policy/v1/chat/completions", body)
                print(json.dumps({"name": name, "direct": direct, "through": through}), flush=True)


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    async with session.post(url, data=body, headers=headers) as answer:
        read = await answer.read()
        return {
            "status": answer.status,
            "type": answer.headers["Content-Type"],
            "body": base64.b64encode(read).decode(),
        }


async def _until_ready(session: aiohttp.ClientSession, base_url: str) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                async with session.get(f"{base_url}/models") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
