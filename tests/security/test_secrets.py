"""The model's key, looked for from inside and in all that comes out."""

from __future__ import annotations

import json

from e2e.runs import tree_of
from security.scenarios import HostileRun


def test_no_process_has_the_key_in_its_environment(attacked: HostileRun) -> None:
    saw = attacked.saw("key-in-environment")
    assert saw["files"] > 2 and saw["bytes"] > 1000, "the search did not see anything"
    assert saw["keys"] == 0


def test_no_file_holds_the_key_or_a_token_of_the_cluster(attacked: HostileRun) -> None:
    saw = attacked.saw("key-on-disk")
    assert saw["files"] > 10 and saw["whole"], "the search did not see everything"
    assert saw["keys"] == 0
    assert saw["service account"] == []


def test_no_memory_that_can_be_read_holds_the_key(attacked: HostileRun) -> None:
    saw = attacked.saw("key-in-memory-of-others")
    assert saw["bytes"] > 1 << 20, "the search did not see anything"
    assert saw["decoys"] > 0, "the search did not find what is there"
    # From scope 1 on the kernel lets nobody read the memory of a process that is not its own child.
    assert saw["others"] > 0 or saw["ptrace scope"] not in ("", "0"), "the search saw its own process alone"
    assert saw["keys"] == 0


def test_the_gateway_says_the_key_in_no_answer_and_in_no_error(attacked: HostileRun) -> None:
    saw = attacked.saw("key-from-the-gateway")
    assert saw["statuses"][0] == 200, "the gateway did not answer at all"
    assert saw["keys"] == 0


def test_the_key_is_in_no_status_log_or_file_of_the_bundle(attacked: HostileRun) -> None:
    assert _places_with(attacked.model_key, attacked) == []


def test_no_token_is_in_a_status_log_or_file_of_the_bundle(attacked: HostileRun) -> None:
    """Neither the job's own nor the stolen one."""
    assert all(len(token) > 20 for token in attacked.tokens.values()) and len(set(attacked.tokens.values())) == 2
    assert {name: places for name, token in attacked.tokens.items() if (places := _places_with(token, attacked))} == {}


def _places_with(secret: str, run: HostileRun) -> list[str]:
    assert run.bundle
    texts = {"the job's states": json.dumps([run.job, *run.states]).encode()}
    texts |= {f"log of {name}": log.encode() for name, log in run.logs.items()} | tree_of(run.bundle)
    return [name for name, content in texts.items() if secret.encode() in content]
