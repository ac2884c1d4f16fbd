"""What runs in the canaries, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from nhx_gym_operator.api.wire.plans import CanaryPlan, GateTarget
from nhx_gym_operator.api.wire.reports import GATE_OPEN_EXIT_CODE, CanaryReport
from nhx_gym_operator.gym_host import canary, facts, gate
from nhx_gym_operator.gym_host.link_local import Neighbours


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without neighbours of the machine that the tests run on."""
    monkeypatch.setitem(gate.pass_gate.__kwdefaults__, "neighbours", Neighbours)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    messages: list[str] = []
    monkeypatch.setattr(gate, "say", messages.append)
    return messages


@pytest.fixture
def listener() -> Iterator[tuple[int, int]]:
    """The ports of a listening canary: the second one, and the one that answers."""
    servers = canary.servers(0, 0)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tuple(server.server_address[1] for server in servers)
    for server in servers:
        server.shutdown()
        server.server_close()


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def plan(canary_port: int, port: int, seconds: float = 1.0) -> CanaryPlan:
    target = GateTarget(name="canary", host="127.0.0.1", port=canary_port, known_by="it listens there")
    return CanaryPlan(
        evaluator_url=f"http://127.0.0.1:{port}",
        gate_refused=[target],
        gate_timeout_s=seconds,
        open_timeout_s=seconds,
    )


def test_reaching_both_ports_reports_both_kernels(listener, said):
    assert canary.reach(plan(*listener)) == 0
    report = CanaryReport.model_validate_json(said[-1])
    assert report.kernel == report.listener_kernel == facts.measured_kernel()
    assert report.kernel.boot_id and report.kernel.release
    assert len(said[-1].encode()) < 4096


def test_an_answer_without_the_second_port_is_not_enough(listener, said):
    canary_port, port = unused_port(), listener[1]
    assert canary.reach(plan(canary_port, port, 0.3)) == 1
    assert f"canary (127.0.0.1:{canary_port}" in said[-1] and "refuses" in said[-1]


def test_a_listener_that_is_away_is_named_with_what_happened(said):
    port = unused_port()
    assert canary.reach(plan(unused_port(), port, 0.3)) == 1
    assert f"http://127.0.0.1:{port} was not reached" in said[-1] and "refused" in said[-1]


def test_a_port_that_stays_open_is_named_and_has_its_own_exit_code(listener, said):
    assert canary.refused(plan(*listener, 0.3)) == GATE_OPEN_EXIT_CODE
    assert said[-1] == f"canary (127.0.0.1:{listener[0]}, known to be up: it listens there)"


def test_a_second_port_that_refuses_while_the_other_answers_passes(listener, said):
    assert canary.refused(plan(unused_port(), listener[1], 10)) == 0
    assert said[-1].startswith("1 addresses refused after")


@pytest.mark.parametrize(("content", "shown"), [("1024\n", "1024"), ("max\n", "max"), (None, "")])
def test_the_pids_limit_is_what_the_cgroup_says(tmp_path, content, shown):
    file = tmp_path / "pids.max"
    if content is not None:
        file.write_text(content)
    assert facts.pids_limit((tmp_path / "absent", file)) == shown


def test_an_attempt_that_says_nothing_of_the_policy_ends_with_words(listener, said):
    def exhausted(_: GateTarget) -> bool:
        raise gate.GateError("canary could not be tried: too many open files")

    assert canary.reach(plan(*listener), connect=exhausted) == 1
    assert said[-1] == "canary could not be tried: too many open files"


def test_an_answer_that_is_no_kernels_is_named(listener, said, monkeypatch):
    monkeypatch.setattr(gate, "health", lambda _: b"<html>a proxy's page</html>")
    assert canary.reach(plan(*listener, 0.3)) == 1
    assert "its answer is no kernel's" in said[-1]
