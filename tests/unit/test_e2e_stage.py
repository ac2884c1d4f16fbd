"""The stage of the end-to-end tests knows all its stories."""

from __future__ import annotations

import pytest

from e2e import playing, stage


@pytest.mark.parametrize("module", playing.STORIES, ids=lambda module: module.__name__)
def test_every_file_of_stories_tells_some(module: object) -> None:
    """An import for its effect alone looks unused, and a formatter once took it out."""
    told = {name for name in stage.names() if hasattr(module, name)}
    assert told and told <= set(vars(playing))
