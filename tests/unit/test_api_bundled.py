from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nhx_gym_operator.api import bundled

SERVERS = {
    "resources_servers/mcqa": {"missing": []},
    "resources_servers/blackjack": {"missing": []},
    "resources_servers/ifbench": {"missing": ["langdetect", "spacy"]},
    "responses_api_agents/simple_agent": {"missing": []},
}


@pytest.fixture
def short_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another list in the place of the package's own."""
    (tmp_path / bundled.LIST_FILE).write_text(json.dumps(SERVERS))
    monkeypatch.setattr(bundled, "files", lambda package: tmp_path)
    bundled._components.cache_clear()
    yield
    bundled._components.cache_clear()


@pytest.mark.usefixtures("short_list")
@pytest.mark.parametrize(
    ("server", "missing"),
    [("mcqa", []), ("resources_servers/mcqa", []), ("ifbench", ["langdetect", "spacy"]), ("mine", None)],
)
def test_what_a_server_lacks_is_known_by_its_name(server: str, missing: list[str] | None):
    assert bundled.missing_dependencies(server) == missing


@pytest.mark.usefixtures("short_list")
def test_a_message_can_offer_the_servers_that_run():
    assert bundled.known_servers() == ["blackjack", "mcqa"]


@pytest.mark.parametrize(
    ("instance", "agent"),
    [("mcqa_simple_agent", "simple_agent"), ("blackjack_gymnasium_agent", "gymnasium_agent"), ("mine", None)],
)
def test_an_instance_is_known_by_its_name_in_gyms_own_configurations(instance: str, agent: str | None):
    assert bundled.agent_of(instance) == agent


def test_the_images_run_these_servers_offline():
    """Those that need nothing beyond NeMo Gym, plus what the examples use."""
    servers = ["mcqa", "blackjack", "calendar", "workplace_assistant", "xlam_fc", "example_multi_step"]
    assert [bundled.missing_dependencies(server) for server in servers] == [[]] * len(servers)
