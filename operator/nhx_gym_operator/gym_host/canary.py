"""The canaries: what the operator starts to see whether a sandbox of this cluster holds. No Gym is in it.

One pod listens where a job has its evaluator: on a port that must stay reachable and on one that a policy takes away.
The other is the client, built like a gym host. Its first container proves that both ports are reachable while the
policies let them; without that, a refusal would prove nothing. Then the operator takes the second port out of the
client's policy, and the client's other container waits at the same gate as a host does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pydantic import ValidationError

from ..api.wire.endpoints import CANARY_PORT, EVALUATOR_PORT, HEALTH_PATH
from ..api.wire.plans import CanaryPlan, GateTarget
from ..api.wire.reports import CanaryReport, Kernel
from . import facts, gate

PAUSE_S = 0.2


class _Handler(BaseHTTPRequestHandler):
    """`GET /healthz` answers with the kernel that this pod runs on."""

    def do_GET(self) -> None:
        found = self.path == HEALTH_PATH
        body = facts.measured_kernel().model_dump_json().encode() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The client asks several times a second."""


class _Server(ThreadingHTTPServer):
    def __init__(self, family: socket.AddressFamily, port: int) -> None:
        self.address_family = family
        super().__init__(("", port), _Handler)


def servers(*ports: int) -> list[ThreadingHTTPServer]:
    """Bound and listening, on IPv4 and on IPv6 where the pod has that."""
    try:
        return [_Server(socket.AF_INET6, port) for port in ports]
    except OSError:
        return [_Server(socket.AF_INET, port) for port in ports]


def listen() -> int:
    """Serves until the pod is deleted. The canary listens before the port that answers: an answer means both."""
    canary, answering = servers(CANARY_PORT, EVALUATOR_PORT)
    threading.Thread(target=canary.serve_forever, daemon=True).start()
    answering.serve_forever()
    return 0


def listener_kernel(url: str) -> Kernel | str:
    """What the listener runs on, or why it did not say."""
    answer = gate.health(url)
    if isinstance(answer, str):
        return answer
    try:
        return Kernel.model_validate_json(answer)
    except ValidationError as error:
        return f"its answer is no kernel's: {error}"


def reach(plan: CanaryPlan, *, connect: Callable[[GateTarget], bool] = gate.reachable) -> int:
    """0 once the listener answers and the canary port opens, with a `CanaryReport` as the pod's message."""
    try:
        listener = _reached(plan, connect)
    except gate.GateError as error:
        gate.say(str(error))
        return error.exit_code
    report = CanaryReport(kernel=facts.measured_kernel(), listener_kernel=listener, pids_limit=facts.pids_limit())
    gate.say(report.model_dump_json())
    return 0


def _reached(plan: CanaryPlan, connect: Callable[[GateTarget], bool]) -> Kernel:
    canary = plan.gate_refused[0]
    deadline = time.monotonic() + plan.open_timeout_s
    while True:
        answer = listener_kernel(plan.evaluator_url)
        if isinstance(answer, Kernel) and connect(canary):
            return answer
        trouble = answer if isinstance(answer, str) else f"{gate.named(canary)} refuses"
        if time.monotonic() >= deadline:
            raise gate.GateError(
                f"within {plan.open_timeout_s:g} s the listener at {plan.evaluator_url} was not reached though both "
                f"policies allow it: {trouble}"
            )
        time.sleep(PAUSE_S)


def refused(plan: CanaryPlan) -> int:
    """0 once all that must be refused is refused while the listener answers; `GATE_OPEN_EXIT_CODE` if it is not."""
    try:
        passage = gate.pass_gate(plan)
    except gate.SandboxOpenError as error:
        gate.say("; ".join(map(gate.named, error.targets)))
        return error.exit_code
    except gate.GateError as error:
        gate.say(str(error))
        return error.exit_code
    gate.say(f"{len(passage.refused)} addresses refused after {passage.seconds:.1f} s; {passage.words}")
    return 0
