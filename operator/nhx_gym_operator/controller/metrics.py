"""What Prometheus may scrape of the operator. Text format, escaping and server are its own client library's part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, start_http_server

from .clock import parse_time
from .measuring.findings import Verdict

MAX_MODELS = 200
"""Pairs of namespace and model that have series of their own."""
OTHER_MODELS = "(other)"
_VALUES = {Verdict.HOLDS: 1.0, Verdict.FAILS: 0.0, Verdict.UNKNOWN: float("nan")}


class SandboxMetrics:
    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._holds = Gauge(
            "nhx_sandbox_holds",
            "Whether it was measured to hold, as far as that still stands: 1 yes, 0 no, NaN not known.",
            ["check"],
            registry=registry,
        )
        self._tried = Gauge(
            "nhx_sandbox_measured_timestamp_seconds", "When the sandbox was measured last.", registry=registry
        )

    def show(self, verdicts: tuple[Verdict, Verdict]) -> None:
        """Of the kernel and of the network."""
        for name, verdict in zip(("kernel", "network"), verdicts, strict=True):
            if verdict in _VALUES:
                self._holds.labels(name).set(_VALUES[verdict])

    def tried(self, moment: str) -> None:
        self._tried.set(parse_time(moment).timestamp())


class UsageMetrics:
    """What the jobs of a namespace have used of a model, as their statuses say. It counts what a status that was
    written has more than the one before, so that neither an operator which starts again nor a job which is looked at
    again counts anything twice."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        of = ("namespace", "model")
        self._calls = Counter("nhx_model_calls", "Calls to models.", [*of, "result"], registry=registry)
        self._tokens = Counter("nhx_model_tokens", "Tokens, as models state them.", [*of, "kind"], registry=registry)
        self._seconds = Counter(
            "nhx_model_call_seconds", "What calls took, with retries and the waits between.", of, registry=registry
        )
        self._seen: set[tuple[str, str]] = set()

    def add(self, job: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """`job` is the one that the status was written to, with the status that it had before."""
        before = (job.get("status") or {}).get("usage") or {}
        for name, usage in (status.get("usage") or {}).items():
            more = {field: max(0, value - (before.get(name) or {}).get(field, 0)) for field, value in _counts(usage)}
            if not any(more.values()):
                continue
            model = next((model["model"] for model in job["spec"]["models"] if model["name"] == name), name)
            labels = self._labels(job["metadata"]["namespace"], model)
            for result, field in (("answered", "calls"), ("failed", "failedCalls"), ("aborted", "abortedCalls")):
                self._calls.labels(*labels, result).inc(more.get(field, 0))
            for kind, field in (("input", "inputTokens"), ("output", "outputTokens")):
                self._tokens.labels(*labels, kind).inc(more.get(field, 0))
            self._seconds.labels(*labels).inc(more.get("seconds", 0))

    def _labels(self, namespace: str, model: str) -> tuple[str, str]:
        """Models have whatever names users give them, and each is a time series of its own for as long as this runs."""
        labels = (namespace, model)
        if labels not in self._seen and len(self._seen) >= MAX_MODELS:
            return namespace, OTHER_MODELS
        self._seen.add(labels)
        return labels


def _counts(usage: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(field, value) for field, value in usage.items() if isinstance(value, int | float)]


class OperatorMetrics:
    """About the operator itself."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._leads = Gauge(
            "nhx_operator_leads",
            "Whether this operator acts: 1 yes, 0 no, another one holds the Lease or nobody does.",
            registry=registry,
        )
        self.refused_statuses = Counter(
            "nhx_status_refused",
            "Statuses, or parts of them, that the definition in the cluster does not take.",
            registry=registry,
        )

    def leads[Answer: Callable[[], bool]](self, holds: Answer) -> Answer:
        """Asked whenever somebody scrapes: a Lease runs out without anybody telling."""
        self._leads.set_function(lambda: float(holds()))
        return holds


OPERATOR = OperatorMetrics()
SANDBOX = SandboxMetrics()
USAGE = UsageMetrics()
"""The process's own."""


def serve(port: int) -> Callable[[], None]:
    """Serves `/metrics` from a thread of its own; call what is returned to end that."""
    server, thread = start_http_server(port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
