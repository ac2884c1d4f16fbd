"""The evaluator's API, attacked with a token that opens it."""

from __future__ import annotations

import re
from collections import Counter

from security.scenarios import FAILED_ROWS, REFUSED_ROWS, ROWS, HostileRun
from support.job_watch import condition

OWN_CALLS = 1
"""`key-from-the-gateway` makes one that is in order."""
TOKENS_OF_A_CALL = 120
"""As the scripted model counts."""


def test_a_model_that_is_not_declared_is_not_called(attacked: HostileRun) -> None:
    saw = attacked.saw("undeclared-model")
    assert saw.pop("route") == 404
    assert set(saw.values()) == {422}


def test_no_other_path_or_method_leads_anywhere(attacked: HostileRun) -> None:
    saw = attacked.saw("other-paths-and-methods")
    assert saw.pop("CONNECT /") == 407, "a proxy wants a token of its own first"
    assert set(saw.values()) <= {400, 404, 405}


def test_no_spelling_of_a_path_leads_to_files_or_to_what_the_operator_reads(attacked: HostileRun) -> None:
    saw = attacked.saw("path-traversal")
    # 407: of a whole address the evaluator is a proxy, which wants a token of its own.
    assert set(saw.values()) <= {400, 401, 404, 407}, saw


def test_huge_requests_are_refused_and_the_evaluator_goes_on(attacked: HostileRun) -> None:
    saw = attacked.saw("huge-request")
    assert saw["after"] == 200
    # 0: the connection was closed before all of it was sent.
    assert {saw["stated"], saw["chunked"]} <= {0, 413}
    assert saw["registration"] in (0, 413)
    assert saw["header"] in (0, 400, 431) and saw["headers"] in (0, 200, 400, 431)


def test_no_request_rides_inside_another(attacked: HostileRun) -> None:
    """`GET /progress` is answered 200 to the operator's token alone: none of these may show one."""
    smuggled = attacked.saw("header-smuggling")
    assert any(smuggled.values()), "nothing was answered at all"
    for name, statuses in smuggled.items():
        assert "200" not in statuses, f"{name}: {statuses}"


def test_odd_requests_open_nothing_and_the_evaluator_goes_on(attacked: HostileRun) -> None:
    saw = attacked.saw("odd-requests")
    assert saw.pop("after") == ["200"]
    # The upgrade is none: what comes behind it is a request like any other, and wants a token.
    assert saw.pop("after an upgrade") in (["200"], ["200", "401"])
    # Nothing: the connection was closed before all of it was sent.
    assert {name: answer for name, answer in saw.items() if set(answer) - {"400", "401", "413", "422", "431"}} == {}
    assert saw["token in a trailer"] == ["401"]


def test_connections_that_never_end_keep_nobody_out(attacked: HostileRun) -> None:
    saw = attacked.saw("connections-held-open")
    assert saw["held"] > 100 and saw["after"] == 200
    later = {"forgery", "container", "tokens", "log"}
    assert later <= attacked.rows.keys(), "rollouts after it were not collected"


def test_refusals_stand_in_the_evaluators_log_without_a_token(attacked: HostileRun) -> None:
    log = attacked.evaluator_log
    assert re.search(r"POST /hosts from \S+: 403", log) and re.search(r"GET /progress from \S+: 401", log)
    assert "Bearer" not in log


def test_calls_that_reached_the_model_are_counted_the_environments_own_too(attacked: HostileRun) -> None:
    usage = attacked.status["usage"]
    assert set(usage) == {"policy"}
    calls = usage["policy"]["calls"]
    # A row asks the model before it attacks, so that also the last one has, which ends its host under gVisor.
    assert calls >= len(ROWS) + OWN_CALLS
    assert usage["policy"]["totalTokens"] == calls * TOKENS_OF_A_CALL


def test_a_rollout_over_which_a_model_call_was_refused_has_no_reward(attacked: HostileRun) -> None:
    assert not set(REFUSED_ROWS) & attacked.rows.keys()


def test_the_job_tells_how_many_rows_failed_in_which_class(hostile: dict[str, HostileRun]) -> None:
    run = hostile["runc"]
    progress = run.status["progress"]
    assert (progress["done"], progress["failed"]) == (len(ROWS) - len(FAILED_ROWS), len(FAILED_ROWS))
    degraded = condition(run.job, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "RolloutsMissing")
    assert f"{len(ROWS) - len(FAILED_ROWS)} of {len(ROWS)} rollouts have a reward" in degraded["message"]
    for kind, count in Counter(run.failures.values()).items():
        assert f"{count} {kind} (“" in degraded["message"]
