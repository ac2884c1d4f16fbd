from __future__ import annotations

import errno
import itertools
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from nhx_gym_operator.api.wire.plans import NODE_ADDRESSES_ENV, NODE_HOST, GateTarget, GymTarget, HostPlan
from nhx_gym_operator.api.wire.reports import GATE_OPEN_EXIT_CODE
from nhx_gym_operator.gym_host import gate
from nhx_gym_operator.gym_host.link_local import Neighbours
from nhx_gym_operator.in_pods import termination_log

CANARY = GateTarget(name="evaluator canary", host="10.0.0.1", port=8081, known_by="the evaluator listens there")
API = GateTarget(name="API server", host="10.0.0.2", port=443, known_by="the operator talks to it")


def plan(*refused: GateTarget, timeout_s: float = 60.0, url: str = "http://10.0.0.1:8080") -> HostPlan:
    target = GymTarget(
        agent="a",
        resources_server="r",
        model_type="m",
        bind_resources_server=True,
        num_repeats=1,
        concurrency=1,
        startup_timeout_s=1,
        shutdown_grace_s=1,
        reward_key="reward",
    )
    return HostPlan(
        job="j",
        uid="u",
        attempt=1,
        ordinal=0,
        evaluator_url=url,
        target=target,
        models={},
        gate_refused=list(refused),
        gate_timeout_s=timeout_s,
    )


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes with every look at the clock, and none otherwise."""
    seconds = itertools.count()
    monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda: float(next(seconds)), sleep=lambda _: None))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without neighbours of the machine that the tests run on."""
    monkeypatch.setitem(gate.pass_gate.__kwdefaults__, "neighbours", lambda: Neighbours(note="no neighbour"))


def answering(_url: str) -> None:
    return None


def silent(_url: str) -> str:
    return "Connection refused"


def test_three_refused_rounds_in_a_row_pass() -> None:
    passage = gate.pass_gate(plan(CANARY, API), connect=lambda _: False, answers=answering)
    assert (passage.rounds, passage.open_rounds) == (3, 0)


def test_a_policy_that_takes_hold_late_passes_and_the_count_starts_again() -> None:
    opened = iter([True, False, True, False, False, False])
    passage = gate.pass_gate(plan(CANARY), connect=lambda _: next(opened), answers=answering)
    assert (passage.rounds, passage.open_rounds) == (6, 2)


def test_what_stays_reachable_is_named_with_why_it_is_known_to_be_up() -> None:
    with pytest.raises(gate.GateError) as refusal:
        gate.pass_gate(plan(CANARY, API), connect=lambda target: target is API, answers=answering)
    assert "API server (10.0.0.2:443, known to be up: the operator talks to it)" in str(refusal.value)
    assert "canary" not in str(refusal.value)


def test_an_address_without_a_known_listener_is_named_as_that() -> None:
    metadata = GateTarget(name="metadata", host="169.254.169.254", port=80, known_by="")
    with pytest.raises(gate.SandboxOpenError, match=r"metadata \(169\.254\.169\.254:80, not known to be up\)") as found:
        gate.pass_gate(plan(CANARY, metadata), connect=lambda target: target is metadata, answers=answering)
    assert found.value.targets == (metadata,)


def test_refusals_prove_nothing_while_the_evaluator_does_not_answer() -> None:
    with pytest.raises(gate.GateError, match=r"did not answer within 900 s \(Connection refused\).*proves nothing"):
        gate.pass_gate(plan(CANARY), connect=lambda _: False, answers=silent)


def test_the_policys_time_counts_from_the_evaluators_first_answer() -> None:
    answers = itertools.chain(["refused"] * 100, itertools.repeat(None))
    passage = gate.pass_gate(plan(CANARY, timeout_s=10), connect=lambda _: False, answers=lambda _: next(answers))
    assert passage.rounds == 3


def test_an_evaluator_that_goes_away_again_fails_the_gate() -> None:
    answers = itertools.chain([None, None], itertools.repeat("reset"))
    with pytest.raises(gate.GateError, match=r"stopped answering \(reset\)"):
        gate.pass_gate(plan(CANARY), connect=lambda _: False, answers=lambda _: next(answers))


def test_an_empty_list_of_targets_shows_nothing_and_fails() -> None:
    with pytest.raises(gate.GateError, match="nothing that must be refused"):
        gate.pass_gate(plan(), connect=lambda _: False, answers=answering)


@pytest.fixture
def listener() -> Iterator[GateTarget]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=server.accept, daemon=True).start()
        yield GateTarget(name="listener", host="127.0.0.1", port=port, known_by="this test")


def test_a_listener_is_reachable_and_a_closed_port_is_not(listener: GateTarget) -> None:
    assert gate.reachable(listener)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = listener.model_copy(update={"port": server.getsockname()[1]})
    assert not gate.reachable(closed)


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM])
def test_every_way_of_blocking_counts_as_refused(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def blocked(*_: object) -> None:
        raise OSError(code, "blocked")

    monkeypatch.setattr(socket, "create_connection", blocked)
    assert not gate.reachable(CANARY)


def test_an_attempt_that_says_nothing_about_the_policy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", exhausted)
    with pytest.raises(gate.GateError, match="could not be tried"):
        gate.reachable(CANARY)


def test_the_verdict_goes_to_the_termination_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path, listener: GateTarget
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setattr(termination_log, "TERMINATION_LOG", str(log))
    monkeypatch.setitem(gate.pass_gate.__kwdefaults__, "answers", answering)
    monkeypatch.setitem(gate.pass_gate.__kwdefaults__, "connect", lambda _: True)
    assert gate.main(plan(listener)) == GATE_OPEN_EXIT_CODE
    assert "listener (127.0.0.1" in log.read_text()
    monkeypatch.setitem(gate.pass_gate.__kwdefaults__, "connect", lambda _: False)
    assert gate.main(plan(listener)) == 0
    assert "1 forbidden addresses refused 3 rounds in a row" in log.read_text()


KUBELET = GateTarget(name="kubelet", host=NODE_HOST, port=10250, known_by="it started this pod")


def test_the_node_is_tried_at_each_of_its_addresses() -> None:
    tried: list[tuple[str, int]] = []

    def connect(target: GateTarget) -> bool:
        tried.append((target.host, target.port))
        return target.host == "fd00::5"

    environ = {NODE_ADDRESSES_ENV: "192.0.2.5,fd00::5"}
    with pytest.raises(
        gate.SandboxOpenError, match=r"kubelet \(\[fd00::5\]:10250, known to be up: it started"
    ) as found:
        gate.pass_gate(plan(CANARY, KUBELET), connect=connect, answers=answering, environ=environ)
    assert set(tried) == {("10.0.0.1", 8081), ("192.0.2.5", 10250), ("fd00::5", 10250)}
    assert [target.host for target in found.value.targets] == ["fd00::5"]


def test_a_node_whose_address_is_not_told_is_not_taken_for_refused() -> None:
    with pytest.raises(gate.GateError, match="kubelet could not be tried: NHX_NODE_ADDRESSES"):
        gate.pass_gate(plan(CANARY, KUBELET), connect=lambda _: False, answers=answering, environ={})


def test_a_neighbour_by_ipv6_that_stays_reachable_is_named() -> None:
    near = Neighbours(("fe80::1%eth0",))
    with pytest.raises(gate.SandboxOpenError, match=r"ipv6-link-local \(\[fe80::1%eth0\]:10250, not known to be up\)"):
        gate.pass_gate(
            plan(CANARY), connect=lambda target: "fe80" in target.host, answers=answering, neighbours=lambda: near
        )


def test_who_passes_says_of_each_target_whether_its_refusal_proves_something() -> None:
    metadata = GateTarget(name="metadata", host="169.254.169.254", port=80, known_by="")
    passage = gate.pass_gate(plan(CANARY, API, metadata), connect=lambda _: False, answers=answering)
    assert passage.words == ("known to be up: evaluator canary, API server; not known to be up: metadata; no neighbour")


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_kernel_without_ipv6_reaches_nothing_by_it(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def without(*_: object) -> None:
        raise OSError(code, "no IPv6")

    monkeypatch.setattr(socket, "create_connection", without)
    assert not gate.reachable(API.model_copy(update={"host": "fd00:ec2::254"}))
    with pytest.raises(gate.GateError, match="could not be tried"):
        gate.reachable(API)
