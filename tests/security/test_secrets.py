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
    assert saw["files"] > 10, "the search did not see anything"
    assert saw["keys"] == 0
    assert saw["service account"] == []


def test_no_memory_that_can_be_read_holds_the_key(attacked: HostileRun) -> None:
    saw = attacked.saw("key-in-memory-of-others")
    assert saw["processes"] > 0 and saw["bytes"] > 1 << 20, "the search did not see anything"
    assert saw["decoys"] > 0, "the search did not find what is there"
    assert saw["keys"] == 0


def test_the_gateway_says_the_key_in_no_answer_and_in_no_error(attacked: HostileRun) -> None:
    saw = attacked.saw("key-from-the-gateway")
    assert saw["statuses"][0] == 200, "the gateway did not answer at all"
    assert saw["keys"] == 0


def test_the_key_is_in_no_status_log_or_file_of_the_bundle(attacked: HostileRun) -> None:
    assert attacked.bundle
    texts = {"status": json.dumps(attacked.job).encode()}
    texts |= {f"log of {name}": log.encode() for name, log in attacked.logs.items()} | tree_of(attacked.bundle)
    assert [name for name, content in texts.items() if attacked.model_key.encode() in content] == []
