from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from nhx_gym_operator.api.tree import STAGED_MANIFEST, tree_digest, tree_files
from nhx_gym_operator.evaluator.__main__ import _stage
from nhx_gym_operator.evaluator.stage import Staged, StagingError, pack, stage
from unit.evaluator_fakes import paths_in

CONFIG = "resources_servers/tiny/configs/tiny.yaml"
FILES = {
    "nemo-environment.yaml": f"format: native-v1\nconfig_paths:\n  - {CONFIG}\nmetadata:\n  name: tiny\n",
    CONFIG: "tiny:\n  resources_servers:\n    tiny:\n      entrypoint: app.py\n",
    "resources_servers/tiny/app.py": "print('tiny')\n",
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def mounted(root: Path, files: dict[str, str]) -> Path:
    """The files as the kubelet mounts a ConfigMap: links into a dated folder behind `..data`."""
    write(root / "..2026_11_29_19_00_00.123", files)
    (root / "..data").symlink_to("..2026_11_29_19_00_00.123")
    for top in {name.split("/")[0] for name in files}:
        (root / top).symlink_to(f"..data/{top}")
    return root


def test_a_mounted_config_map_becomes_its_files_regular_and_once(tmp_path: Path) -> None:
    target = tmp_path / "target"
    staged = stage(mounted(tmp_path / "source", FILES), target)
    assert tree_files(target) == sorted(FILES)
    assert not any(path.is_symlink() for path in target.rglob("*"))
    assert {name: (target / name).read_text() for name in FILES} == FILES
    assert staged.files == 3
    assert Staged.model_validate_json((target / STAGED_MANIFEST).read_text()) == staged


def test_the_digest_is_that_of_the_tree_however_it_was_carried(tmp_path: Path) -> None:
    by_config_map = stage(mounted(tmp_path / "a", FILES), tmp_path / "staged-a")
    plain = write(tmp_path / "b", FILES)
    os.chmod(plain / "resources_servers/tiny/app.py", 0o755)
    by_claim = stage(plain, tmp_path / "staged-b")
    again = stage(plain, tmp_path / "staged-b")
    assert by_config_map.digest == by_claim.digest == again.digest
    write(plain, {"resources_servers/tiny/app.py": "print('other')\n"})
    assert stage(plain, tmp_path / "staged-b").digest != by_claim.digest


def test_staging_again_leaves_nothing_of_the_first_time(tmp_path: Path) -> None:
    target = write(tmp_path / "target", {"left/over.py": "x"})
    stage(write(tmp_path / "source", FILES), target)
    assert tree_files(target) == sorted(FILES)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "holds no file"),
        ({"x.py": ""}, "no nemo-environment.yaml at the root"),
        ({f"wordcheck/{name}": text for name, text in FILES.items()}, "wordcheck/nemo-environment.yaml"),
        (FILES | {"rows.jsonl": "{}"}, "rows.jsonl"),
        (FILES | {"nemo-environment.yaml": "format: native-v1\n"}, "config_paths"),
        ({name: text for name, text in FILES.items() if name != CONFIG}, CONFIG),
        (FILES | {"responses_api_models/mine/app.py": ""}, "responses_api_models/mine/app.py"),
        (FILES | {CONFIG: "tiny:\n  responses_api_models:\n    x: {}\n"}, "responses_api_models"),
        (FILES | {STAGED_MANIFEST: "{}"}, STAGED_MANIFEST),
    ],
)
def test_an_environment_that_breaks_a_rule_is_refused_by_file_and_rule(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(StagingError) as refusal:
        stage(write(source, files), tmp_path / "target")
    assert words in str(refusal.value)


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FILES)
    (source / "key").symlink_to("/etc/hostname")
    with pytest.raises(StagingError, match="key is a link that leads out"):
        stage(source, tmp_path / "target")


def test_a_refusal_is_the_containers_termination_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = paths_in(tmp_path)
    write(paths.environment_source, FILES | {"rows.jsonl": "{}"})
    assert _stage(paths) == 1
    assert "rows.jsonl" in paths.termination_log.read_text()
    assert "rows.jsonl" in capsys.readouterr().err


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
