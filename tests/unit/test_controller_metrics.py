"""What an administrator's Prometheus is told of the use of models."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from nhx_gym_operator.controller import metrics
from nhx_gym_operator.controller.metrics import OperatorMetrics, UsageMetrics

USED = {
    "calls": 3,
    "failedCalls": 1,
    "abortedCalls": 2,
    "inputTokens": 300,
    "outputTokens": 60,
    "seconds": 4.5,
    "latencySeconds": {"mean": 1.0, "p50": 1.0, "p99": 1.0, "max": 1.0},
}


class Scraped:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.usage = UsageMetrics(self.registry)

    def add(self, before: Any, after: Any, *, namespace: str = "team", model: str = "org/m") -> None:
        models = [{"name": "policy", "model": model}, {"name": "judge", "model": "org/judge"}]
        job = {"metadata": {"namespace": namespace}, "spec": {"models": models}, "status": {"usage": before}}
        self.usage.add(job, {"usage": after})

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"namespace": "team", "model": "org/m", **labels})


@pytest.fixture
def scraped() -> Scraped:
    return Scraped()


def test_calls_tokens_and_seconds_stand_by_namespace_and_model(scraped: Scraped) -> None:
    scraped.add(None, {"policy": USED, "judge": {"calls": 1}})
    scraped.add(None, {"policy": USED}, namespace="others")
    calls = {
        result: scraped.value("nhx_model_calls_total", result=result) for result in ("answered", "failed", "aborted")
    }
    assert calls == {"answered": 3, "failed": 1, "aborted": 2}
    tokens = [scraped.value("nhx_model_tokens_total", kind=kind) for kind in ("input", "output")]
    assert tokens == [300, 60]
    assert scraped.value("nhx_model_call_seconds_total") == 4.5
    assert scraped.value("nhx_model_calls_total", result="answered", model="org/judge") == 1
    assert scraped.value("nhx_model_calls_total", result="answered", namespace="others") == 3


def test_only_what_a_status_has_more_than_before_is_counted(scraped: Scraped) -> None:
    scraped.add(None, {"policy": USED})
    scraped.add({"policy": USED}, {"policy": USED})
    scraped.add({"policy": USED}, {"policy": USED | {"calls": 5, "seconds": 5.0}})
    # An attempt that was lost may have known of more than the next one does.
    scraped.add({"policy": USED | {"calls": 5}}, {"policy": USED | {"calls": 1, "inputTokens": 310}})
    assert scraped.value("nhx_model_calls_total", result="answered") == 5
    assert scraped.value("nhx_model_tokens_total", kind="input") == 310
    assert scraped.value("nhx_model_call_seconds_total") == 5.0


def test_names_that_users_make_up_are_not_told_apart_without_end(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_MODELS", 3)
    for number in range(50):
        scraped.add(None, {"policy": {"calls": 1}}, model=f"org/m-{number}")
    scraped.add(None, {"policy": {"calls": 1}}, model="org/m-0")
    assert scraped.value("nhx_model_calls_total", result="answered", model="org/m-0") == 2
    assert scraped.value("nhx_model_calls_total", result="answered", model=metrics.OTHER_MODELS) == 47
    assert len(generate_latest(scraped.registry).splitlines()) < 100


def test_whether_an_operator_acts_is_what_it_is_at_the_time_of_the_scrape() -> None:
    registry, holds = CollectorRegistry(), True
    OperatorMetrics(registry).leads(lambda: holds)
    assert registry.get_sample_value("nhx_operator_leads") == 1.0
    holds = False
    assert registry.get_sample_value("nhx_operator_leads") == 0.0
