"""A folder that a container fills anew."""

from __future__ import annotations

from pathlib import Path

from nhx_gym_operator.in_pods.folders import make_empty


def test_what_a_folder_held_is_gone_and_what_its_links_led_to_is_not(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("of an earlier try")
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("not ours")
    (folder / "link").symlink_to(elsewhere, target_is_directory=True)
    (folder / "broken").symlink_to(tmp_path / "nowhere")
    same = folder.stat().st_ino
    make_empty(folder)
    assert list(folder.iterdir()) == [] and folder.stat().st_ino == same
    assert (elsewhere / "kept").read_text() == "not ours"


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    make_empty(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
