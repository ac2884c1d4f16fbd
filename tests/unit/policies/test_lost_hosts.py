"""How often a gym host was lost is known to an operator that saw none of it, and each loss is counted once."""

import pytest

from nhx_gym_operator.controller.attempt import current
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.policies import lost_hosts
from support.controller_values import (
    NOW,
    accepted_status,
    after,
    ended,
    evaluator,
    host,
    job,
    kinds,
    live,
    observe,
    progress,
    running,
    workload,
)

EVALUATOR = evaluator(workload(), states={"agent-evaluate": running()}, phase="Running")
KILLED = {"sandbox-gate": ended(), "gym-host": ended(137, at="2026-11-29T11:59:30Z", reason="OOMKilled")}


def pod(number, ordinal=0, **changes):
    """The host's pod of that number."""
    return live(host(workload(), ordinal, **{"states": {"gym-host": running()}, **changes}), uid=f"pod-{number}")


def look(status, *hosts, moment=NOW, ghosts=(), **spec):
    """What an operator decides that saw these pods go and no others."""
    return decide(
        observe(
            job(status=status, **spec),
            pods=(EVALUATOR, *hosts),
            ghosts=ghosts,
            progress=progress(hosts_ready=len(hosts)),
        ),
        moment,
    )


def recorded(decision, number=0):
    return next(entry for entry in decision.status["hostPods"] if entry["host"] == number)


def counted(status, *hosts, ghosts=(), **spec):
    seen = observe(job(status=status, **spec), pods=(EVALUATOR, *hosts), ghosts=ghosts)
    return {n: record.lost for n, record in lost_hosts.records(seen, current(seen), NOW).items()}


def test_a_job_whose_operator_is_new_at_each_loss_ends_at_its_limit_all_the_same():
    status = accepted_status()
    for number in range(7):
        status = look(status, pod(number), moment=after(number)).status
        decision = look(status, moment=after(number))
        status = decision.status
        assert (recorded(decision)["lost"], recorded(decision)["gone"]) == (number + 1, True)
    entry = next(entry for entry in status["conditions"] if entry["type"] == "Failed")
    assert entry["reason"] == "HostLost"
    assert entry["message"].startswith("7 gym hosts of attempt 1 were lost, and spec.backoffLimit is 6; the last one: ")
    assert "no operator saw how" in entry["message"]


def test_a_new_operator_pauses_before_it_replaces_a_host_that_was_lost_before():
    status = look(accepted_status(), pod(1)).status
    status = look(status, pod(2)).status
    decision = look(status)
    assert not [shown for shown in kinds(decision) if "host" in shown]
    assert decision.requeue_after == 10
    assert "CreateTogether mcqa-host-0-1" in kinds(look(decision.status, moment=after(11)))


@pytest.mark.parametrize("ghosts", [(), (pod(1, states=KILLED, phase="Failed"),)], ids=["unseen", "seen"])
@pytest.mark.parametrize("there", [(), (pod(2),)], ids=["not replaced yet", "replaced"])
def test_a_loss_is_counted_once_however_often_it_is_seen(ghosts, there):
    first = look(look(accepted_status(), pod(1)).status, *there, ghosts=ghosts)
    assert recorded(first)["lost"] == 1
    again = look(first.status, *there, moment=after(30), ghosts=ghosts)
    # A status that is as it was is no call to the API server.
    assert again.status == first.status


def test_how_a_host_ended_is_kept_where_an_operator_saw_it():
    decision = look(look(accepted_status(), pod(1)).status, ghosts=(pod(1, states=KILLED, phase="Failed"),))
    assert recorded(decision)["lostMessage"].endswith("ended without an outcome: OOMKilled, exit code 137")
    assert recorded(decision)["lostTime"] == "2026-11-29T11:59:30Z"


def test_all_pods_that_came_and_went_between_two_looks_are_counted():
    status = look(accepted_status(), pod(1)).status
    assert counted(status, pod(4), ghosts=(pod(1), pod(2), pod(3))) == {0: 3}
    assert counted(status, pod(4), ghosts=(pod(2), pod(3))) == {0: 3}
    assert counted(look(status, ghosts=(pod(1),)).status, pod(4), ghosts=(pod(1), pod(2), pod(3))) == {0: 3}


def test_each_host_has_a_count_of_its_own():
    two = {"hosts": 2, "gym": {"concurrency": 8}}
    status = look(accepted_status(), pod(1), pod(2, 1), **two).status
    assert counted(status, pod(1), **two) == {0: 0, 1: 1}


def test_an_attempt_begins_without_lost_hosts():
    status = look(look(accepted_status(), pod(1)).status).status
    assert counted(status) == {0: 1}
    assert counted({**status, "attempt": None}) == {}
