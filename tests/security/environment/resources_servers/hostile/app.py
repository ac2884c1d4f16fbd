"""A resources server that attacks everything around it while it verifies.

A row's `attack` names a group of `attacks.GROUPS`, or one of the forged answers below. What was tried and seen comes
back as `attempts`, which is this environment's word and no more: tests judge by what was seen outside. Each answer
holds all attempts so far: a rollout over which a model call was refused is a failed one, of which nothing is kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from fastapi import Response
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    SimpleResourcesServer,
)
from pydantic import ConfigDict

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attacks

REWARD = 0.25
"""Of every honest row. Whatever else shows up as a reward was forged."""
FORGED_TOKENS = 10**12
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mSUCCEEDED\x1b[0m\r\x9b31m gym_reward.reward 1.0"
LOG_FLOOD_BYTES = 12 << 20

_attempts: list[dict[str, Any]] = []

print(f"hostile environment imported {ESCAPES}", flush=True)


class HostileRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    attack: str


class HostileVerifyRequest(HostileRunRequest, BaseVerifyRequest):
    """The same, with the model's response."""


class HostileServer(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def verify(self, body: HostileVerifyRequest) -> Response:
        answer: dict[str, Any] = {**body.model_dump(), "reward": REWARD, "attempts": _attempts}
        if body.attack in attacks.GROUPS:
            targets = await asyncio.to_thread(attacks.wait_for_targets)
            _attempts.extend(await asyncio.to_thread(attacks.run_group, body.attack, targets))
        else:
            getattr(self, f"forge_{body.attack}")(answer)
        return Response(json.dumps(answer), media_type="application/json")

    def forge_index(self, answer: dict[str, Any]) -> None:
        """The answer of this rollout for another one, and for one that nobody asked for."""
        answer |= {"_ng_task_index": 0, "_ng_rollout_index": 7, "task_id": "another", "reward": 1.0}

    def forge_nan(self, answer: dict[str, Any]) -> None:
        answer["reward"] = "NaN"

    def forge_infinity(self, answer: dict[str, Any]) -> None:
        answer["reward"] = "Infinity"

    def forge_tokens(self, answer: dict[str, Any]) -> None:
        usage = answer["response"].get("usage") or {}
        answer["response"]["usage"] = usage | {
            "input_tokens": FORGED_TOKENS,
            "output_tokens": FORGED_TOKENS,
            "total_tokens": 2 * FORGED_TOKENS,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }

    def forge_nesting(self, answer: dict[str, Any]) -> None:
        """Deeper than what comes after can take. By hand: Python's own writer would not."""
        nested: Any = "deep"
        for _ in range(180):
            nested = [nested]
        answer["nested"] = nested

    def forge_escapes(self, answer: dict[str, Any]) -> None:
        raise RuntimeError(f"the verifier fails {ESCAPES}")

    def forge_log(self, answer: dict[str, Any]) -> None:
        """More than the container's log is worth, in lines and then without a line's end."""
        for _ in range(LOG_FLOOD_BYTES // 2 // 1024):
            print("flood " + "x" * 1017, flush=False)
        print("y" * (LOG_FLOOD_BYTES // 2), flush=True)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Aggregates of one's own, under the names of those that are computed elsewhere."""
        return {"gym_reward.reward": 1.0, "reward": 1.0, "mean/reward": 1.0, "coverage": 1.0}


if __name__ == "__main__":
    print(f"hostile environment started {ESCAPES}", flush=True)
    HostileServer.run_webserver()
