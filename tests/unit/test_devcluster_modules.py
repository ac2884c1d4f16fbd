import re
from pathlib import Path

import pytest

from devcluster import modules


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "go.mod").write_text("module m\n")
    (tmp_path / "go.sum").write_text("a v1 h1:x\n")
    return tmp_path


def test_a_build_is_found_again_wherever_the_sources_lie(folder: Path, tmp_path_factory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("go.sum", "go.mod"):
        (elsewhere / name).write_text((folder / name).read_text())
    assert modules.build_key(folder, ["-s"]) == modules.build_key(elsewhere, ["-s"])


def test_changed_sources_or_flags_are_another_build(folder: Path) -> None:
    keys = [modules.build_key(folder, ["-s"]), modules.build_key(folder, ["-s", "-w"])]
    (folder / "go.sum").write_text("a v2 h1:y\n")
    keys.append(modules.build_key(folder, ["-s"]))
    (folder / "nested").mkdir()
    (folder / "nested" / "stand_in.go").write_text("package x\n")
    keys.append(modules.build_key(folder, ["-s"]))
    assert len(set(keys)) == len(keys)


def test_every_module_pins_its_checksums_and_every_binary_has_one_source() -> None:
    for module in modules.MODULES:
        assert (module.folder / "go.sum").is_file(), module.name
    assert len(modules.OWNER) == sum(len(set(module.binaries)) for module in modules.MODULES)
    assert modules.OWNER["containerd-shim-runsc-v1"].name == "gvisor"
    assert modules.OWNER["etcd"].name == "etcd"


def test_what_the_cluster_does_without_is_built_only_when_named(monkeypatch) -> None:
    built = []
    monkeypatch.setattr(modules, "build", lambda module: built.append(module.name))
    monkeypatch.setattr(modules.Module, "is_built", lambda self: False)

    modules.build_missing()
    assert "helm" in built and "helm3" not in built

    built.clear()
    modules.build_missing(["helm3"])
    assert built == ["helm3"]


def test_what_several_programs_are_made_of_has_one_version_and_so_is_compiled_once() -> None:
    """gVisor holds on to older Kubernetes libraries, and shares little."""
    versions: dict[str, set[str]] = {}
    for name in ("etcd", "containerd", "kubernetes", "helm", "services"):
        text = (modules.SOURCES / name / "go.mod").read_text()
        found = dict(re.findall(r"^\t(\S+) (v\S+)", text, re.M))
        found |= dict(re.findall(r"^\t(\S+) => \1 (v\S+)", text, re.M))
        for dependency, version in found.items():
            versions.setdefault(dependency, set()).add(version)
    assert {dependency: found for dependency, found in versions.items() if len(found) > 1} == {}
