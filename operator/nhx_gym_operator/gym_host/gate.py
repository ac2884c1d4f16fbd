"""The init container `sandbox-gate`: no untrusted code starts before the sandbox is shown to be shut.

A network policy takes hold only some time after the pod has its address, and in a cluster without a
policy controller it never does. So the gate connects to listeners that are known to be up and waits
until every one of them is refused, several rounds in a row, while the one address that must answer
does: the evaluator. Without that answer a refusal would prove nothing, since a pod without any
network refuses everything.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..api.wire.endpoints import HEALTH_PATH, KUBELET_PORT
from ..api.wire.plans import NODE_ADDRESSES_ENV, NODE_HOST, GatePlan, GateTarget
from ..api.wire.reports import GATE_OPEN_EXIT_CODE
from ..in_pods.termination_log import write_termination_message
from . import link_local

ROUNDS_IN_A_ROW = 3
EVALUATOR_WAIT_S = 900.0
"""The evaluator's image may still be pulled: as long as the platform waits for a host to be ready
(gym-sandbox-configuration.mdx)."""
CONNECT_TIMEOUT_S = 1.0
"""A connection inside a cluster takes milliseconds. What has not opened by then counts as blocked,
because policies may drop a packet as well as refuse it."""
PAUSE_S = 0.3
ANSWER_LIMIT_BYTES = 16 << 10

_BLOCKED = {
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
    errno.EACCES,
    errno.EPERM,
    errno.EHOSTDOWN,
    errno.ENETDOWN,
}
_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
"""The kernel knows no IPv6, or the pod has no address that it could send from."""


class GateError(RuntimeError):
    """The sandbox is not shown to be shut. The message is what the pod's status shows."""

    exit_code = 1


class SandboxOpenError(GateError):
    """The sandbox is shown to be open, by these targets."""

    exit_code = GATE_OPEN_EXIT_CODE

    def __init__(self, message: str, targets: Sequence[GateTarget]) -> None:
        super().__init__(message)
        self.targets = tuple(targets)


@dataclass(frozen=True)
class Passage:
    """How the gate was passed. Seconds count from the gate's start."""

    rounds: int
    open_rounds: int
    seconds: float
    refused: tuple[GateTarget, ...]
    """All that was tried, with the addresses that only the pod knows."""
    note: str = ""
    """What there was not to be tried."""

    @property
    def words(self) -> str:
        """What was refused, and where that proves something."""
        known = dict.fromkeys(target.name for target in self.refused if target.known_by)
        others = dict.fromkeys(target.name for target in self.refused if not target.known_by)
        parts = [f"known to be up: {', '.join(known)}"] if known else []
        parts += [f"not known to be up: {', '.join(others)}"] if others else []
        return "; ".join([*parts, *filter(None, [self.note])])


def reachable(target: GateTarget) -> bool:
    """Whether a TCP connection to `target` opens.

    Raises `GateError` when the attempt failed for a reason that says nothing about the policy, e.g.
    a name that does not resolve or a process without free descriptors.
    """
    try:
        socket.create_connection((target.host, target.port), CONNECT_TIMEOUT_S).close()
    except TimeoutError:
        return False
    except OSError as error:
        if error.errno in _BLOCKED or (":" in target.host and error.errno in _NO_IPV6):
            return False
        raise GateError(f"{named(target)} could not be tried: {error}") from error
    return True


def health(url: str) -> bytes | str:
    """What is answered with 200 at the health endpoint below `url`, as bytes; else, as text, what happened instead."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url + HEALTH_PATH, timeout=2 * CONNECT_TIMEOUT_S) as response:
            return response.read(ANSWER_LIMIT_BYTES) if response.status == 200 else f"HTTP {response.status}"
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__


def evaluator_answers(url: str) -> str | None:
    """None if the evaluator's health endpoint answers 200, else what happened instead."""
    answer = health(url)
    return answer if isinstance(answer, str) else None


def named(target: GateTarget) -> str:
    known = f"known to be up: {target.known_by}" if target.known_by else "not known to be up"
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{target.name} ({host}:{target.port}, {known})"


def _on_the_spot(
    targets: Sequence[GateTarget], neighbours: link_local.Neighbours, environ: Mapping[str, str]
) -> tuple[GateTarget, ...]:
    """The targets with those addresses that only the pod knows: its node's, and its neighbours' by IPv6."""
    found: list[GateTarget] = []
    for target in targets:
        if target.host == NODE_HOST:
            found += [target.model_copy(update={"host": host}) for host in _node_addresses(target, environ)]
        else:
            found.append(target)
    # A neighbour may be the node by another name: its kubelet is what would be worth most.
    found += [
        GateTarget(name="ipv6-link-local", host=address, port=KUBELET_PORT, known_by="")
        for address in neighbours.addresses
    ]
    return tuple(found)


def _node_addresses(target: GateTarget, environ: Mapping[str, str]) -> list[str]:
    addresses = [address for address in environ.get(NODE_ADDRESSES_ENV, "").split(",") if address]
    if not addresses:
        raise GateError(f"{target.name} could not be tried: {NODE_ADDRESSES_ENV} names no address of this pod's node")
    return addresses


def _open_targets(targets: Sequence[GateTarget], connect: Callable[[GateTarget], bool]) -> list[GateTarget]:
    if not targets:
        return []
    with ThreadPoolExecutor(max_workers=len(targets)) as pool:
        return [target for target, is_open in zip(targets, pool.map(connect, targets), strict=True) if is_open]


def _wait_for_evaluator(plan: GatePlan, answers: Callable[[str], str | None]) -> None:
    deadline = time.monotonic() + EVALUATOR_WAIT_S
    while (trouble := answers(plan.evaluator_url)) is not None:
        if time.monotonic() >= deadline:
            raise GateError(
                f"the evaluator at {plan.evaluator_url} did not answer within {EVALUATOR_WAIT_S:g} s ({trouble}). "
                "A refused connection proves nothing without it: look at the evaluator pod, and at whether the "
                "host's NetworkPolicy lets this pod reach it"
            )
        time.sleep(PAUSE_S)


def pass_gate(
    plan: GatePlan,
    *,
    connect: Callable[[GateTarget], bool] = reachable,
    answers: Callable[[str], str | None] = evaluator_answers,
    neighbours: Callable[[], link_local.Neighbours] = link_local.look,
    environ: Mapping[str, str] = os.environ,
) -> Passage:
    """Return once the sandbox has been shut for `ROUNDS_IN_A_ROW` rounds; raise `GateError` otherwise.

    `plan.gate_timeout_s` counts from the evaluator's first answer.
    """
    if not plan.gate_refused:
        raise GateError("the plan names nothing that must be refused, so nothing can be shown")
    started = time.monotonic()
    _wait_for_evaluator(plan, answers)
    deadline = time.monotonic() + plan.gate_timeout_s
    near = neighbours()
    targets = _on_the_spot(plan.gate_refused, near, environ)
    rounds = shut = open_rounds = 0
    while True:
        rounds += 1
        # The refusals count only between two answers: the listeners behind them share the evaluator's life.
        trouble = answers(plan.evaluator_url)
        still_open = _open_targets(targets, connect) if trouble is None else []
        shut = shut + 1 if trouble is None and not still_open else 0
        open_rounds += bool(still_open)
        if shut == ROUNDS_IN_A_ROW and (trouble := answers(plan.evaluator_url)) is None:
            return Passage(rounds, open_rounds, time.monotonic() - started, targets, near.note)
        if trouble is not None:
            shut = 0
        if time.monotonic() >= deadline:
            raise _refusal(plan, still_open, trouble)
        time.sleep(PAUSE_S)


def _refusal(plan: GatePlan, still_open: Sequence[GateTarget], trouble: str | None) -> GateError:
    if trouble is not None:
        return GateError(
            f"the evaluator at {plan.evaluator_url} stopped answering ({trouble}), so that refused connections "
            "prove nothing; look at the evaluator pod"
        )
    if not still_open:
        return GateError(
            f"the sandbox was not shut for {ROUNDS_IN_A_ROW} rounds in a row within {plan.gate_timeout_s:g} s"
        )
    return SandboxOpenError(
        f"after {plan.gate_timeout_s:g} s this pod still reached what its NetworkPolicy forbids: "
        + "; ".join(map(named, still_open))
        + ". No environment code was started. Either the cluster enforces no egress policies, or not towards a "
        "pod's own node, or another policy allows this",
        still_open,
    )


def main(plan: GatePlan) -> int:
    try:
        passage = pass_gate(plan)
    except GateError as error:
        message, code = f"sandbox-gate: {error}", error.exit_code
    else:
        message, code = (
            f"sandbox-gate: {len(passage.refused)} forbidden addresses refused {ROUNDS_IN_A_ROW} rounds in a row, "
            f"round {passage.rounds}, {passage.seconds:.1f} s after start ({passage.open_rounds} rounds open before); "
            f"{passage.words}",
            0,
        )
    say(message)
    return code


def say(message: str) -> None:
    """To the log, and to whoever looks at the pod."""
    print(message, flush=True)
    write_termination_message(message)
