"""The attacks on the evaluator's API, against that API without a cluster: the same code that runs in the sandbox."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from support.cluster import ROOT
from unit.test_evaluator_http_api import api

HOSTILE = ROOT / "tests/security/environment/resources_servers/hostile/attacks.py"


@pytest.fixture
def attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("hostile_attacks", HOSTILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    token = tmp_path / "token"
    token.write_text("host-token-0\n")
    module.TOKEN_FILE = str(token)
    return module


@pytest_asyncio.fixture
async def evaluator(tmp_path: Path) -> AsyncIterator[tuple[str, Any]]:
    async with api(tmp_path) as served:
        yield served


async def saw(attacks: ModuleType, name: str, evaluator: tuple[str, Any]) -> Any:
    targets = {
        "evaluator": evaluator[0],
        "model": "org/name",
        "key_pattern": "sk-e2e-[0-9a-f]{24}",
        "stolen_token": "another-jobs-token",
    }
    return (await asyncio.to_thread(attacks.run, name, targets))["saw"]


async def test_models_paths_and_methods(attacks: ModuleType, evaluator: tuple[str, Any]) -> None:
    found = await saw(attacks, "undeclared-model", evaluator)
    assert found.pop("route") == 404 and set(found.values()) == {422}
    assert set((await saw(attacks, "other-paths-and-methods", evaluator)).values()) <= {400, 404, 405}
    traversal = await saw(attacks, "path-traversal", evaluator)
    assert set(traversal.values()) <= {400, 401, 404}, traversal


async def test_a_request_that_is_no_http_is_logged_without_its_token(
    attacks: ModuleType, evaluator: tuple[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    await saw(attacks, "header-smuggling", evaluator)
    assert "that is no HTTP" in caplog.text
    assert "host-token-0" not in caplog.text


async def test_sizes_smuggled_requests_and_held_connections(attacks: ModuleType, evaluator: tuple[str, Any]) -> None:
    huge = await saw(attacks, "huge-request", evaluator)
    assert huge["after"] == 200 and {huge["stated"], huge["chunked"], huge["registration"]} <= {0, 413}, huge
    smuggled = await saw(attacks, "header-smuggling", evaluator)
    assert not [name for name, statuses in smuggled.items() if "200" in statuses], smuggled
    assert any(smuggled.values()), "nothing was answered at all"
    odd = await saw(attacks, "odd-requests", evaluator)
    assert odd.pop("after") == ["200"] and odd.pop("after an upgrade") in (["200"], ["200", "401"])
    assert odd["packed"] in ([], ["413"]) and odd["many headers"] in ([], ["400"], ["431"]), odd
    assert odd["token in a trailer"] == ["401"] and odd["long trailer"] in ([], ["400"], ["413"], ["422"]), odd
    held = await saw(attacks, "connections-held-open", evaluator)
    assert held == {"held": 200, "after": 200}
    for connection in attacks._HELD:
        connection.close()


async def test_registrations_tokens_and_progress(attacks: ModuleType, evaluator: tuple[str, Any]) -> None:
    # The fakes' job has two hosts; 1 is the other one.
    assert set((await saw(attacks, "register-another-host", evaluator)).values()) == {403}
    assert set(await saw(attacks, "register-a-bad-shape", evaluator)) == {422}
    tokens = await saw(attacks, "token-of-another-job", evaluator)
    assert tokens.pop("own host") == 0
    assert set(tokens.values()) == {401}
    assert await saw(attacks, "token-in-the-wrong-direction", evaluator) == {"progress": 401}
    assert set((await saw(attacks, "forge-progress", evaluator)).values()) <= {401, 404, 405}


async def test_what_a_host_says_of_itself_is_bounded_and_steers_no_terminal(
    attacks: ModuleType, evaluator: tuple[str, Any]
) -> None:
    assert await saw(attacks, "forge-facts", evaluator) == 200
    _, hosts = evaluator
    assert len(hosts.versions) <= 24
    said = [hosts.kernel, *hosts.versions, *hosts.versions.values()]
    assert all(text.isprintable() for text in said)
    (host,) = hosts.ready()
    assert host.url.endswith(":8000")


async def test_no_attack_that_might_succeed_runs_with_roots_rights(
    attacks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacks.os, "getuid", lambda: 0)
    for name in set(attacks.ATTACKS) - attacks.SPEAKING:
        with pytest.raises(SystemExit, match=name):
            attacks.run(name, {})
