from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nhx_gym_operator.api.tree import STAGED_MANIFEST, tree_digest, tree_files
from nhx_gym_operator.api.wire.plans import STAGE_PLAN_ENV, StagePlan
from nhx_gym_operator.api.wire.reports import Staged
from nhx_gym_operator.evaluator.__main__ import _refuse, _stage
from nhx_gym_operator.evaluator.sources.errors import StagingError
from nhx_gym_operator.evaluator.stage import stage as stage_plan
from unit.evaluator_fakes import paths_in

CONFIG = "resources_servers/tiny/configs/tiny.yaml"
FILES = {
    "nemo-environment.yaml": f"format: native-v1\nconfig_paths:\n  - {CONFIG}\nmetadata:\n  name: tiny\n",
    CONFIG: "tiny:\n  resources_servers:\n    tiny:\n      entrypoint: app.py\n",
    "resources_servers/tiny/app.py": "print('tiny')\n",
}


PLAN = StagePlan(job="j", attempt=1, file_set="tiny", uid="u", generation=1, source="PersistentVolumeClaim envs")


def stage(source: Path, target: Path, **plan: Any) -> Staged:
    paths = replace(paths_in(target.parent / "paths"), source=source, environment=target)
    return stage_plan(PLAN.model_copy(update=plan), paths, {})


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
        ({f"wordcheck/{name}": text for name, text in FILES.items()}, "in 'wordcheck'"),
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


def test_what_was_staged_or_why_not_is_the_containers_termination_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_in(tmp_path)
    monkeypatch.setenv(STAGE_PLAN_ENV, PLAN.model_dump_json())
    write(paths.source, FILES)
    assert _stage(paths) == 0
    assert Staged.model_validate_json(paths.termination_log.read_text()).digest == tree_digest(paths.environment)
    write(paths.source, {"rows.jsonl": "{}"})
    assert _stage(paths) == 1
    assert "rows.jsonl" in paths.termination_log.read_text()
    assert "rows.jsonl" in capsys.readouterr().err


def test_a_digest_that_the_spec_asks_for_is_held_against_what_was_found(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FILES)
    found = stage(source, tmp_path / "target").digest
    assert stage(source, tmp_path / "target", digest=found).digest == found
    wanted = f"sha256:{'0' * 64}"
    with pytest.raises(StagingError) as refusal:
        stage(source, tmp_path / "target", digest=wanted)
    assert found in str(refusal.value) and wanted in str(refusal.value) and "spec.digest" in str(refusal.value)


def test_a_folder_of_the_source_can_be_the_sets_root(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {f"envs/tiny/{name}": text for name, text in FILES.items()})
    stage(source, tmp_path / "target", path="envs/tiny")
    assert tree_files(tmp_path / "target") == sorted(FILES)
    with pytest.raises(StagingError) as refusal:
        stage(source, tmp_path / "target")
    assert "'envs/tiny'" in str(refusal.value) and "source.persistentVolumeClaim.path" in str(refusal.value)
    with pytest.raises(StagingError, match=r"no folder 'env' .*at its root is envs"):
        stage(source, tmp_path / "target", path="env")


def test_a_path_that_is_a_link_does_not_lead_out_of_the_source(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"x": ""})
    (source / "out").symlink_to(tmp_path)
    with pytest.raises(StagingError, match="leads out of PersistentVolumeClaim envs"):
        stage(source, tmp_path / "target", path="out")


def test_a_dataset_is_the_one_file_that_the_job_names_of_any_set(tmp_path: Path) -> None:
    paths = replace(paths_in(tmp_path), source=write(tmp_path / "source", {"a/rows.jsonl": "{}\n", "b": ""}))
    staged = stage_plan(PLAN.model_copy(update={"dataset": "a/rows.jsonl"}), paths, {})
    assert paths.staged_dataset.read_text() == "{}\n"
    assert staged.files == 2 and not paths.environment.exists()
    with pytest.raises(StagingError) as refusal:
        stage_plan(PLAN.model_copy(update={"dataset": "rows.jsonl"}), paths, {})
    assert "a/rows.jsonl" in str(refusal.value) and "tasks.dataset.fileSet.path" in str(refusal.value)


def test_what_a_file_system_keeps_for_itself_is_no_file_of_the_set(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FILES | {"lost+found/x": ""})
    assert stage(source, tmp_path / "target").files == len(FILES)


def test_names_with_dots_are_files_where_the_source_is_no_config_map(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FILES | {"..hidden": "", ".dot": ""})
    assert stage(source, tmp_path / "target").files == len(FILES) + 2


def test_folders_that_links_multiply_are_not_all_walked_through(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FILES)
    for level in range(12):
        (source / f"d{level}").mkdir()
        for number in range(20 if level else 0):
            (source / f"d{level - 1}/l{number}").symlink_to(f"../d{level}")
    with pytest.raises(StagingError, match="more than 20000 folders"):
        stage(source, tmp_path / "target")


def test_a_name_that_is_not_utf8_is_refused_in_words_that_can_be_written(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FILES)
    Path(os.fsdecode(os.fsencode(source) + b"/odd\xff")).write_text("x")
    with pytest.raises(StagingError, match="not UTF-8") as refused:
        stage(source, tmp_path / "target")
    str(refused.value).encode()


def test_a_refusal_steers_no_terminal_and_turns_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "termination-log"
    _refuse("the archive's \x1b]0;owned\x07\u202egnp.exe\udcff is a link", log)
    for said in (log.read_text(), capsys.readouterr().err.rstrip("\n")):
        assert said.isprintable() and "gnp.exe" in said


def test_of_a_files_mode_only_whether_it_runs_is_kept(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FILES)
    for name, mode in (("resources_servers/tiny/app.py", 0o6755), (CONFIG, 0o4644)):
        (source / name).chmod(mode)
    target = tmp_path / "target"
    stage(source, target)
    modes = {name: (target / name).stat().st_mode & 0o7777 for name in FILES}
    assert modes == {"nemo-environment.yaml": 0o644, "resources_servers/tiny/app.py": 0o755, CONFIG: 0o644}


def test_folders_that_lie_too_deep_are_refused_by_name(tmp_path: Path) -> None:
    deep = "/".join("f" * 34)
    with pytest.raises(StagingError, match="more than 32 folders deep"):
        stage(write(tmp_path / "source", {**FILES, f"{deep}/x": ""}), tmp_path / "target")
