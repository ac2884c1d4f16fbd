"""Archives made to get out of the folder that they are unpacked into. Every shape of them: test_sources_archives.py."""

from __future__ import annotations

import pytest

from e2e.filesets import Staging
from support.job_watch import condition, is_true


@pytest.mark.parametrize("archive", ["traversal", "link", "device", "bomb"])
def test_a_hostile_archive_is_refused_by_the_name_of_its_entry(
    hostile_archives: dict[str, Staging], archive: str
) -> None:
    staging = hostile_archives[archive]
    staged = condition(staging.job, "Staged")
    assert staged["status"] == "False"
    entry = {
        "traversal": "owned",
        "link": "resources_servers/out",
        "device": "resources_servers/device",
        "bomb": "bomb",
    }
    assert entry[archive] in staged["message"], staged
    assert staging.resolved["status"] == "False"


def test_no_gym_was_started_for_them(hostile_archives: dict[str, Staging]) -> None:
    assert not any(is_true(staging.job, "SandboxReady") for staging in hostile_archives.values())
