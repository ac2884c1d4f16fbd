"""Which rollout a model call belongs to, and what a failed one makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nhx_gym_operator.api.gym_models import IN_GYM, search_path
from nhx_gym_operator.api.wire.endpoints import ROLLOUT_HEADER, ModelUsage
from nhx_gym_operator.api.wire.reports import FailureClass
from nhx_gym_operator.evaluator import rollout_calls
from nhx_gym_operator.evaluator.metering import CallCost, End
from nhx_gym_operator.evaluator.rollout_calls import FailedCall, RolloutCalls
from nhx_gym_operator.evaluator.rollouts import Failure, RolloutKey

HOST, OTHER_HOST = 0, 1
FIRST, SECOND = RolloutKey(0, 0), RolloutKey(0, 1)
REFUSED = FailedCall("policy", FailureClass.MODEL, "HTTP 401 from the model server: no")
BODY = b'{"model": "m"}'
RESULT: dict[str, Any] = {"reward": 1.0}


def under_way(*keys: RolloutKey, caller: int = HOST) -> RolloutCalls:
    calls = RolloutCalls()
    for key in keys:
        calls.rollout_began(key, caller)
    return calls


def refuse(calls: RolloutCalls, rollout_id: str = "", *, caller: int = HOST, body: bytes = BODY) -> str:
    call = calls.began("policy", caller, rollout_id)
    calls.ended(call, CallCost(End.FAILED))
    return calls.failed(call, body, REFUSED)


def end(calls: RolloutCalls, key: RolloutKey, answer: dict[str, Any] | Failure = RESULT) -> FailedCall | None:
    return calls.rollout_ended(key, answer, rewarded=not isinstance(answer, Failure)).spoiled_by


def test_a_failed_call_spoils_the_rollout_that_it_names_and_no_other() -> None:
    calls = under_way(FIRST, SECOND)
    refuse(calls, "0-1")
    assert end(calls, FIRST) is None
    assert end(calls, SECOND) == REFUSED
    assert calls.notices() == []


def test_the_same_request_sent_again_makes_good_for_its_failure() -> None:
    calls = under_way(FIRST, SECOND)
    refuse(calls, "0-0")
    calls.answered(calls.began("policy", HOST, "0-0"), BODY)
    assert end(calls, FIRST) is None


def test_neither_another_request_nor_one_of_the_same_moment_nor_another_rollouts_makes_good() -> None:
    calls = under_way(FIRST, SECOND)
    beside = calls.began("policy", HOST, "0-0")
    refuse(calls, "0-0")
    calls.answered(beside, BODY)
    calls.answered(calls.began("policy", HOST, "0-0"), b"another")
    calls.answered(calls.began("judge", HOST, "0-0"), BODY)
    calls.answered(calls.began("policy", HOST, "0-1"), BODY)
    assert end(calls, FIRST) == REFUSED


def test_the_only_rollout_under_way_needs_no_name() -> None:
    calls = under_way(FIRST)
    refuse(calls)
    assert end(calls, FIRST) == REFUSED
    assert calls.notices() == []


def test_a_call_that_began_under_another_rollout_is_not_put_on_the_only_one_left() -> None:
    calls = under_way(FIRST, SECOND)
    call = calls.began("policy", HOST, "")
    assert end(calls, FIRST) is None
    calls.failed(call, BODY, REFUSED)
    assert end(calls, SECOND) is None
    assert len(calls.notices()) == 1


@pytest.mark.parametrize("named", ["", "7-7", "0-0-a1", "0-0; x", "9999999999-0", "-1-0"])
def test_a_failed_call_that_nothing_tells_apart_leaves_a_doubt_about_the_rewards_of_its_time(named: str) -> None:
    calls = under_way(FIRST, SECOND)
    refuse(calls, named)
    assert calls.notices() == []
    assert end(calls, FIRST) is None
    (notice,) = calls.notices()
    assert (notice.type, notice.reason) == ("ModelCallsUnplaced", "FailedCallsUnplaced")
    assert "1 model calls failed" in notice.message and REFUSED.message in notice.message


def test_no_reward_no_doubt() -> None:
    calls = under_way(FIRST, SECOND)
    end(calls, FIRST)
    refuse(calls, "7-7")
    end(calls, SECOND, Failure(FailureClass.ENVIRONMENT, "KeyError"))
    calls.rollout_began(FIRST, HOST)
    assert end(calls, FIRST) is None
    assert calls.notices() == []


def test_a_host_can_name_no_rollout_of_another_host() -> None:
    calls = under_way(FIRST)
    calls.rollout_began(SECOND, OTHER_HOST)
    refuse(calls, "0-0", caller=OTHER_HOST)
    assert end(calls, FIRST) is None
    assert end(calls, SECOND) is None
    assert len(calls.notices()) == 1


def test_a_mark_in_the_result_tells_what_nothing_else_did() -> None:
    """Gym's capture of a call whose failure the agent swallowed."""
    calls = under_way(FIRST, SECOND)
    mark = refuse(calls)
    assert end(calls, SECOND) is None
    assert calls.notices()
    captured = {"reward": 0.0, "_nhx_model_calls": [{"response_raw": f"Hit an exception …: b'no [{mark}]'"}]}
    assert end(calls, FIRST, captured) == REFUSED
    assert calls.notices() == []


def test_a_mark_that_was_never_given_says_nothing() -> None:
    calls = under_way(FIRST, SECOND)
    refuse(calls)
    assert end(calls, FIRST, {"reward": 1.0, "text": "nhx-call-0123456789ab"}) is None


def test_a_rollout_that_is_sent_again_starts_without_its_failures() -> None:
    calls = under_way(FIRST)
    refuse(calls, "0-0")
    calls.rollout_began(FIRST, OTHER_HOST)
    assert end(calls, FIRST) is None


def test_what_a_rollout_cost_is_counted_by_model_over_all_its_tries_and_for_no_other() -> None:
    calls = under_way(FIRST, SECOND)
    for model, tokens in (("policy", (10, 2, 12)), ("policy", None), ("judge", (1, 1, 2))):
        calls.ended(calls.began(model, HOST, "0-0"), CallCost(End.ANSWERED, tokens, seconds=0.5))
    calls.ended(calls.began("policy", HOST, "0-0"), CallCost(End.ABORTED, seconds=0.25))
    calls.ended(calls.began("policy", HOST, "0-0"), CallCost(None, seconds=7.0))
    calls.rollout_began(FIRST, OTHER_HOST)
    refuse(calls, "0-0", caller=OTHER_HOST)
    calls.ended(calls.began("policy", HOST, ""), CallCost(End.ANSWERED, (100, 100, 200), seconds=9.0))
    used = calls.rollout_ended(FIRST, RESULT, rewarded=True).usage
    assert used["judge"] == ModelUsage(calls=1, input_tokens=1, output_tokens=1, total_tokens=2, seconds=0.5)
    policy = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    ended = {"calls": 2, "failed_calls": 1, "aborted_calls": 1, "unmetered_calls": 2}
    assert used["policy"] == ModelUsage(**ended, **policy, seconds=1.25)


def test_a_call_after_the_last_rollout_spoils_nothing() -> None:
    calls = under_way(FIRST)
    end(calls, FIRST)
    refuse(calls, "0-0")
    assert calls.notices() == []


def test_failed_calls_without_end_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_calls, "_REMEMBERED", 10)
    calls = under_way(FIRST, SECOND)
    for _ in range(100):
        refuse(calls)
    assert len(calls._marks) == len(calls._unplaced) == 10
    assert calls.notices(), "what was forgotten stays a doubt"


GYM = {
    "rollout_correlation": """
        from contextlib import contextmanager
        from contextvars import ContextVar
        _ID = ContextVar("id", default=None)
        current_rollout_id = _ID.get
        @contextmanager
        def rollout_context(value):
            token = _ID.set(value)
            yield
            _ID.reset(token)
    """,
    "openai_utils": """
        async def request(**call):
            print(call.get("headers"))
        async def create_response():
            return await request(method="POST", url="u", headers={"Authorization": "Bearer x"})
    """,
    "base_responses_api_model": """
        import re
        from nemo_gym.openai_utils import create_response
        _ROLLOUT_PATH_RE = re.compile("^/ng-rollout/(?P<rollout_id>[^/]+)(?P<rest>/.*)$")
        class _CaptureMiddleware:
            def __init__(self, app):
                self._app = app
            async def __call__(self, scope, receive, send):
                await create_response()
    """,
}
"""As much of nemo_gym 0.5.0 as is changed, each part of its shape. That the real one is, a test with real Gym says."""


def served(directory: Path, path: str, gym: dict[str, str] = GYM) -> subprocess.CompletedProcess[str]:
    package = directory / "nemo_gym"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in gym.items():
        (package / f"{name}.py").write_text("\n".join(line.removeprefix(" " * 8) for line in text.splitlines()))
    code = f"""
import asyncio
from nemo_gym.base_responses_api_model import _CaptureMiddleware
asyncio.run(_CaptureMiddleware(None)({{"type": "http", "path": {path!r}}}, None, None))
"""
    environment = {**os.environ, "PYTHONPATH": search_path(str(directory))}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/ng-rollout/4-1/v1/responses", {"Authorization": "Bearer x", ROLLOUT_HEADER: "4-1"}),
        ("/v1/responses", {"Authorization": "Bearer x"}),
    ],
)
def test_gyms_model_server_passes_on_the_rollout_that_it_is_called_for(
    tmp_path: Path, path: str, sent: dict[str, str]
) -> None:
    assert served(tmp_path, path).stdout.strip() == str(sent)


def test_gym_starts_ray_without_its_dashboard(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("def init(**options): print(options)\n")
    (tmp_path / "nemo_gym").mkdir()
    (tmp_path / "nemo_gym/__init__.py").touch()
    (tmp_path / "nemo_gym/server_utils.py").write_text("import ray\ninitialize_ray = lambda: ray.init(address='gcs')\n")
    code = "from nemo_gym.server_utils import initialize_ray; initialize_ray()"
    environment = {**os.environ, "PYTHONPATH": search_path(str(tmp_path))}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == str({"include_dashboard": False, "address": "gcs"}), said.stderr


def test_a_gym_of_another_shape_serves_all_the_same_and_says_what_it_lacks(tmp_path: Path) -> None:
    other = GYM | {"rollout_correlation": "", "openai_utils": GYM["openai_utils"]}
    ended = served(tmp_path, "/ng-rollout/4-1/v1/responses", other)
    assert ended.stdout.strip() == str({"Authorization": "Bearer x"})
    assert "will not say their rollout" in ended.stderr


def test_what_runs_in_gyms_processes_needs_nothing_of_ours() -> None:
    assert "nhx_gym_operator" not in (IN_GYM / "sitecustomize.py").read_text()
