from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from nhx_gym_operator.api.tree import tree_digest
from nhx_gym_operator.evaluator.packing import pack
from nhx_gym_operator.evaluator.sources.errors import StagingError
from unit.test_evaluator_stage import FILES, stage, write


def test_the_archive_holds_the_tree_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "target"
    staged = stage(write(tmp_path / "source", FILES), target)
    environment = pack(target, tmp_path / "work" / "environment.tar")
    assert environment.digest == staged.digest
    unpacked = tmp_path / "unpacked"
    with tarfile.open(environment.archive) as tar:
        assert sorted(tar.getnames()) == sorted(FILES)
        tar.extractall(unpacked, filter="data")
    assert tree_digest(unpacked) == staged.digest


def test_a_tree_that_changed_after_staging_is_not_sent(tmp_path: Path) -> None:
    target = tmp_path / "target"
    stage(write(tmp_path / "source", FILES), target)
    write(target, {"resources_servers/tiny/app.py": "import evil\n"})
    with pytest.raises(StagingError, match="not the one that was staged"):
        pack(target, tmp_path / "environment.tar")
