"""Stands in for NeMo Gym: one model call a rollout, and a verifier like mcqa's, in threads of this process."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from ..api.gym_models import TOKEN_ENV
from ..api.wire.endpoints import HOST_ANSWER_LIMIT_BYTES, ROLLOUT_HEADER
from .gym_config import CONFIG_ENV

_BOXED = re.compile(r"\\boxed\{\s*([A-Z])\s*\}")
_AT_ONCE = 16


class ModelCallError(RuntimeError):
    """As Gym's `ClientResponseError`: the body of the failed call is what tells the evaluator its cause."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(f"the model call was answered {status}")
        self.response_content = content


class Gym:
    """What the launcher and the server need of a running Gym."""

    rollout_deadline_s = 600.0
    heartbeat_s = 15.0
    max_response_bytes = HOST_ANSWER_LIMIT_BYTES

    def __init__(self, agent_instance: str) -> None:
        self._agent = agent_instance
        self._config: dict[str, str] = {}
        self._threads = concurrent.futures.ThreadPoolExecutor(_AT_ONCE)

    def start(self, on_ray: Callable[[], None] = lambda: None) -> None:
        self._config = json.loads(os.environ[CONFIG_ENV])

    def submit(self, examples: list[dict[str, Any]]) -> concurrent.futures.Future[list[dict[str, Any]]]:
        return self._threads.submit(lambda: [self._rollout(example) for example in examples])

    def aggregate(self, rows: list[dict[str, Any]]) -> concurrent.futures.Future[dict[str, Any]]:
        mean = sum(row["reward"] for row in rows) / len(rows)
        metrics = {"mean/reward": mean, "pass@1/accuracy": 100 * mean}
        answer = {"agent_metrics": metrics, "key_metrics": {}, "group_level_metrics": []}
        return self._threads.submit(lambda: answer)

    def check(self) -> None:
        """There is no server that could have ended."""

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _rollout(self, row: dict[str, Any]) -> dict[str, Any]:
        rollout = f"{row['_ng_task_index']}-{row['_ng_rollout_index']}"
        said = self._ask(row["responses_create_params"]["input"], rollout)
        text, usage = said["choices"][0]["message"]["content"], said["usage"]
        found = _BOXED.findall(text)
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
        counted = {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
        }
        return {
            **row,
            "response": {"id": f"resp_{rollout}", "object": "response", "output": [message], "usage": counted},
            "reward": float(bool(found) and found[-1] == row["expected_answer"]),
        }

    def _ask(self, messages: Any, rollout: str) -> dict[str, Any]:
        """`user` tells the tests' model server whose call this is, so that it can count what was asked twice."""
        body = {"model": self._config["model"], "messages": messages, "user": f"{self._config['uid']}/{rollout}"}
        headers = {
            "Authorization": f"Bearer {os.environ[TOKEN_ENV]}",
            "Content-Type": "application/json",
            ROLLOUT_HEADER: rollout,
        }
        request = urllib.request.Request(f"{self._config['url']}/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ModelCallError(error.code, error.read()) from error
