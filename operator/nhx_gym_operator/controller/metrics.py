"""What Prometheus may scrape of the operator. Text format, escaping and server are its own client library's part."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, start_http_server

from .clock import parse_time
from .measuring.findings import Findings, Verdict

_VALUES = {Verdict.HOLDS: 1.0, Verdict.FAILS: 0.0, Verdict.UNKNOWN: float("nan")}


class SandboxMetrics:
    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._holds = Gauge(
            "nhx_sandbox_holds",
            "Whether the last measurement saw it hold: 1 yes, 0 no, NaN not known.",
            ["check"],
            registry=registry,
        )
        self._tried = Gauge(
            "nhx_sandbox_measured_timestamp_seconds", "When the sandbox was measured last.", registry=registry
        )

    def show(self, findings: Findings) -> None:
        for name, check in zip(("kernel", "network"), findings.checks, strict=True):
            if check.verdict in _VALUES:
                self._holds.labels(name).set(_VALUES[check.verdict])
        self._tried.set(parse_time(findings.tried_at).timestamp())


SANDBOX = SandboxMetrics()
"""The process's own."""


def serve(port: int) -> Callable[[], None]:
    """Serves `/metrics` from a thread of its own; call what is returned to end that."""
    server, thread = start_http_server(port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
