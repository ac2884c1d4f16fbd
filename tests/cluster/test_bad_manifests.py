"""Manifests that must not be accepted, each with the message that a user gets from the API server."""

from pathlib import Path

import pytest
import yaml

from nhx_gym_operator.controller.kube import ApiError

FOLDER = Path(__file__).parent / "bad_manifests"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_there_are_at_least_eight():
    assert len(FILES) >= 8


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
async def test_a_bad_manifest_is_refused_with_its_message(world, file):
    text = file.read_text()
    first = text.splitlines()[0]
    assert first.startswith("# expect: ")
    with pytest.raises(ApiError) as refused:
        await world.create_job(yaml.safe_load(text))
    assert first.removeprefix("# expect: ") in refused.value.message
