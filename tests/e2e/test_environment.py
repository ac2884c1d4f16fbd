"""An environment of one's own, from a FileSet."""

from __future__ import annotations

from e2e.manifests import WORDCHECK_TASKS
from e2e.runs import Run, rows_of
from support.job_watch import condition, is_true


def test_the_real_model_earns_something_in_a_custom_environment(real_model: Run) -> None:
    """A range: the texts of a real model are not ours to promise."""
    status = real_model.status
    assert status["placement"] == "Sandboxed" and status["isolation"] == "Kernel"
    assert status["progress"]["failed"] == 0
    assert status["progress"]["done"] == status["progress"]["total"] == WORDCHECK_TASKS
    assert 0.3 <= real_model.aggregates["gym_reward.reward"]["value"] <= 0.95
    usage = status["usage"]["policy"]
    assert usage["calls"] >= status["progress"]["total"]
    assert usage["inputTokens"] > 0 and usage["outputTokens"] > 0


def test_the_real_models_answers_are_texts_that_were_scored(real_model: Run) -> None:
    assert real_model.bundle
    for row in rows_of(real_model.bundle / "gym_run/rollouts.jsonl"):
        texts = [part["text"] for item in row["response"]["output"] for part in item.get("content") or []]
        assert any(text.strip() for text in texts)
        assert row["reward"] in (0.0, 0.5, 1.0)


def test_what_was_staged_is_named_by_its_digest(real_model: Run) -> None:
    assert is_true(real_model.job, "Staged")
    assert len(real_model.status["ran"]["environmentDigest"].rpartition(":")[2]) == 64


def test_without_a_sandbox_a_custom_environment_is_refused_by_the_setting_to_change(refused_environment: Run) -> None:
    accepted = condition(refused_environment.job, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "EnvironmentNeedsSandbox")
    assert "sandbox.mode" in accepted["message"] and "wordcheck" in accepted["message"]
    events = [event for event in refused_environment.facts["events"] if event["reason"] == "EnvironmentNeedsSandbox"]
    assert events and events[0]["type"] == "Warning"
    assert "sandbox.mode" in events[0]["message"]


def test_a_refused_job_makes_no_pods(refused_environment: Run, refused_server: Run) -> None:
    assert refused_environment.pods == [] and refused_server.pods == []
    assert not [child for child in refused_environment.facts["left"] if child.startswith("Pod/")]


def test_a_bundled_server_that_lacks_packages_is_refused_naming_them(refused_server: Run) -> None:
    accepted = condition(refused_server.job, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "BundledServerLacksDependencies")
    assert "instruction_following" in accepted["message"]
    assert "verifiable-instructions" in accepted["message"]
